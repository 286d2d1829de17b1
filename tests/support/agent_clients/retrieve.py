"""Embeds chunks with one library and finds one of them again; prints the outcome as JSON.

Usage: ``retrieve.py LIBRARY CHUNKS DIMENSIONS``. The base URL and the key are environment
variables. Batches have the default size of the library. Its tokenizer comes with LlamaIndex.
"""

import hashlib
import json
import os
import random
import sys
from collections.abc import Sequence
from importlib import import_module, util
from pathlib import Path
from typing import Any

MODEL = "text-embedding-3-small"
WORDS = ("the", "budget", "limits", "what", "calls", "cost", "every", "chunk", "has", "words")
SENTENCE_WORDS = 170


def _of(module: str) -> Any:
    return import_module(module)


def chunks_of(number: int) -> list[str]:
    """Return texts of about a thousand characters."""
    drawn = random.Random(27)
    return [f"{at}: {' '.join(drawn.choices(WORDS, k=SENTENCE_WORDS))}" for at in range(number)]


def langchain(chunks: Sequence[str], dimensions: int) -> tuple[list[list[float]], str]:
    """Send arrays of tokens, in batches of 1,000 chunks at most."""
    llama_index = util.find_spec("llama_index.core")
    assert llama_index is not None
    assert llama_index.origin is not None
    cache = Path(llama_index.origin).parent / "_static" / "tiktoken_cache"
    os.environ["TIKTOKEN_CACHE_DIR"] = str(cache)
    model = _of("langchain_openai").OpenAIEmbeddings(model=MODEL, dimensions=dimensions)
    store = _of("langchain_core.vectorstores").InMemoryVectorStore(model)
    store.add_texts(list(chunks))
    (document,) = store.similarity_search(chunks[7], k=1)
    return [each["vector"] for each in store.store.values()], str(document.page_content)


def llama_index(chunks: Sequence[str], dimensions: int) -> tuple[list[list[float]], str]:
    """Send texts, in batches of 100 chunks."""
    model = _of("llama_index.embeddings.openai").OpenAIEmbedding(model=MODEL, dimensions=dimensions)
    core = _of("llama_index.core")
    nodes = [_of("llama_index.core.schema").TextNode(text=text) for text in chunks]
    index = core.VectorStoreIndex(nodes, embed_model=model)
    (node,) = index.as_retriever(similarity_top_k=1).retrieve(chunks[7])
    embeddings = index.vector_store.data.embedding_dict
    return [embeddings[each.node_id] for each in nodes], str(node.node.get_content())


if __name__ == "__main__":
    library, number, dimensions = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
    chunks = chunks_of(number)
    vectors, nearest = {"langchain": langchain, "llama_index": llama_index}[library](
        chunks, dimensions
    )
    digest = hashlib.sha256(json.dumps(vectors).encode()).hexdigest()
    outcome = {"vectors": len(vectors), "digest": digest, "found": nearest == chunks[7]}
    sys.stdout.write(json.dumps(outcome) + "\n")
