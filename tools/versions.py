"""The table of the versions that tests, pages and benchmarks read. A new version is a file and an entry here.

A step may change the functions that its entry names; all others stay the same byte for byte, comments and blank lines
included, and in the same order. Its size is bounded too, so that growth is a decision that somebody takes here.
"""
from typing import NamedTuple


class Version(NamedTuple):
    file: str  # without ".py"
    idea: str
    adds: str  # which of the things that picoGPT's README says it lacks
    changed: set  # functions, or "docstring", "imports", "end", that differ from those of the version before
    new: set  # functions that the version before has not
    most_added: int  # lines of the diff from the version before
    most_removed: int
    gone: frozenset = frozenset()  # functions that the version before has and this one has not

    @property
    def name(self):
        """"v3" for gpt2_v3_kvcache."""
        return self.file.split("_")[1]


# The aim is 50 lines added and 20 removed. v3 is more: a cache, two ways to fill it, and a place for it in four
# functions. v4 is about several ways to choose, and adds a function for each. v5 makes every product of small ones.
VERSIONS = [
    Version(
        "gpt2_v0", "one prompt, greedy, a full forward pass per token", "–", changed=set(), new=set(), most_added=0,
        most_removed=0,
    ),
    Version(
        "gpt2_v1_batching", "a batch axis", "batch inference",
        changed={"docstring", "linear", "gpt2", "generate", "main"}, new=set(), most_added=20, most_removed=18,
    ),
    Version(
        "gpt2_v2_padding", "prompts of different lengths: left padding, attention mask, position ids",
        "batch inference, ragged",
        changed={"docstring", "gpt2", "generate", "main"}, new={"left_pad"}, most_added=37, most_removed=14,
    ),
    Version(
        "gpt2_v3_kvcache", "a KV cache: prefill, then one token at a time", "fast",
        changed={"docstring", "mha", "transformer_block", "gpt2", "generate"},
        new={"init_kv_cache", "prefill", "decode_one_token"}, most_added=64, most_removed=16,
    ),
    Version(
        "gpt2_v4_sampling", "sampling and stopping", "temperature, top-k, top-p",
        changed={"docstring", "generate", "main"},
        new={
            "penalize_repetition", "are_best", "keep_top_k", "keep_top_p", "find_share", "draw", "sample",
            "log_softmax", "row_generators",
        },
        most_added=175, most_removed=16,
    ),
    Version(
        "gpt2_v5_exact", "the same bits whatever the batch", "beyond the list: exactness",
        changed={
            "docstring", "imports", "softmax", "linear", "attention", "mha", "transformer_block", "gpt2",
            "init_kv_cache", "generate", "main",
        },
        new={"in_blocks", "tile_params", "fewest_rows", "whole_blocks"}, most_added=120, most_removed=35,
    ),
    Version(
        "gpt2_v6_threads", "all cores, and no bit changes", "fast",
        changed={"docstring", "imports", "layer_norm", "linear", "ffn", "mha", "prefill", "main"},
        new={"parallel", "pool", "use_threads", "in_rows"}, most_added=82, most_removed=13,
    ),
    Version(
        "gpt2_v7_continuous", "no pads; rows come and go", "fast, batch inference",
        changed={"docstring", "imports", "mha", "transformer_block", "gpt2", "init_kv_cache", "generate", "main"},
        new={"group_by_row", "count_shared", "take_row", "reuse", "next_tokens", "choose"}, most_added=200,
        most_removed=130, gone=frozenset({"left_pad", "prefill", "decode_one_token"}),
    ),
    Version(
        "gpt2_v8_lookup", "several tokens a step, guessed from the text itself", "fast",
        changed={"docstring", "imports", "generate"}, new={"draft", "add_drafts", "is_last"}, most_added=65,
        most_removed=12,
    ),
    Version(
        "gpt2_v9_beam", "beams: the best whole continuation", "beyond the list: beam search",
        changed={"docstring", "choose", "generate", "main"},
        new={"apply_rules", "beam_search", "grow", "log_sum_exp", "best_first", "branch"}, most_added=190,
        most_removed=12,
    ),
]  # fmt: skip
