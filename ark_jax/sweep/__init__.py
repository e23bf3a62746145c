"""Runs of one config with other settings each, in processes of their own."""
