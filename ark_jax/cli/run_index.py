"""`--workdir=DIR` of the verbs on an index: the places in the workdir of a run."""

from ark_jax.cli.words import absolute, config_of_workdir, joined, values_of


def of_run(verb: str, args: list[str]) -> list[str]:
    """Flags in which `--workdir=DIR` is replaced by what it stands for.

    For `ark-jax index` these are the run's export, documents and DIR/index; for other verbs it is
    DIR/index.

    Raises:
        ValueError: DIR keeps no config, or its run tunes no retriever of documents.
    """
    from ark_jax.pipeline.recipe import recipe_of

    args = joined(args)
    workdirs = values_of("workdir", args)
    if not workdirs:
        return args
    workdir = absolute(workdirs[-1])
    arguments = [arg for arg in args if not values_of("workdir", [arg])]
    if verb != "index":
        return [str(workdir / "index"), *arguments]
    config = config_of_workdir(args)
    if config is None:
        raise ValueError(f"{workdir} keeps no config of a run; give MODEL CORPUS --out=DIR")
    recipe = recipe_of(config)
    words = recipe.index_words(config, workdir)
    if not words:
        raise ValueError(f"{workdir}: recipe {recipe.name} tunes no retriever of documents")
    return [*words, *arguments]
