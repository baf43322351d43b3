"""The command of each version, on the bundled model.

test_run.py tests what all commands have in common, utils.run, more closely.
"""
import functools
import json

import pytest
from model_files import assert_one_line, command
from tiny import ENDS, PADDING, V0, VERSIONS, first_and_last

import utils

pytestmark = pytest.mark.usefixtures("clean_environment")

every_version = pytest.mark.parametrize("version", VERSIONS, ids=str)
first_and_newest = pytest.mark.parametrize("version", ENDS, ids=str)  # what is the work of rooms
every_padding_version = pytest.mark.parametrize("version", first_and_last(PADDING), ids=str)


@pytest.fixture(scope="module")
def tales():
    """The bundled model: encoder, hparams, params."""
    return utils.load_model("tales")


@pytest.fixture(autouse=True)
def loaded_once(monkeypatch, tales):
    """In this process, all commands share what was loaded."""

    def load_model(model, models_dir, tokenizer):
        assert (model, models_dir, tokenizer) == ("tales", "models", "")
        return tales

    monkeypatch.setattr(utils, "load_model", load_model)


@pytest.fixture
def run(edge):
    """Run a version's command in this process: run(version, *arguments) -> result with returncode, stdout, stderr."""
    return lambda version, *arguments: edge(version.module.main, *arguments)


def records(result):
    """The JSON objects that a command with --json printed, by prompt."""
    assert result.returncode == 0, result.stderr
    return {record["prompt"]: record for record in map(json.loads, result.stdout.splitlines())}


@pytest.fixture(scope="module")
def continuation(tales):
    """What v0 writes after a prompt: continuation(prompt, n) -> ids, text. An empty prompt stands for <|endoftext|>."""
    encoder, hparams, params = tales

    @functools.cache
    def continuation(prompt, n):
        ids = V0.module.generate(encoder.encode(prompt) or [encoder.eot_token], params, hparams["n_head"], n)
        return ids, encoder.decode(ids)

    return continuation


# ---- prompts

TYPED = [
    "Hello, world", "a,b,c", "1", "0x10", "1e5", "True", "None", "[1,2]", "{x}", "'quoted'", "-5", "hello # comment",
]  # fmt: skip


@first_and_newest
def test_prompts_arrive_as_typed(run, version, continuation):
    """Fire alone would make a tuple of "Hello, world", an int of "1" and cut off "# comment"."""
    batches = [TYPED] if version.pads else [[prompt] for prompt in TYPED[:: 1 if version is V0 else 3]]
    for batch in batches:
        found = records(run(version, *batch, "--json", "--n_tokens_to_generate", "1"))
        assert list(sorted(found)) == sorted(batch)
        for prompt in batch:
            ids, text = continuation(prompt, 1)
            assert (found[prompt]["ids"], found[prompt]["text"]) == (ids, text)


@first_and_newest
def test_after_two_dashes_everything_is_a_prompt(run, version, continuation):
    found = records(run(version, "--json", "--n_tokens_to_generate=2", "--", "--json is a flag"))
    assert found["--json is a flag"]["ids"] == continuation("--json is a flag", 2)[0]


@first_and_newest
def test_an_empty_prompt_starts_from_endoftext(run, version, continuation):
    assert run(version, "", "--n_tokens_to_generate", "2").stdout == continuation("", 2)[1] + "\n"


@every_padding_version
def test_an_empty_prompt_disturbs_no_other(run, version, continuation):
    found = records(run(version, "One day", "", "There was a poor", "--json", "--n_tokens_to_generate", "2"))
    for prompt in ("One day", "", "There was a poor"):
        assert found[prompt]["ids"] == continuation(prompt, 2)[0]


@first_and_newest
def test_a_space_at_the_end_is_kept_and_gives_a_hint(run, version, continuation):
    """GPT-2's words begin with their space, so after one it goes on badly; but the prompt is what was typed."""
    result = run(version, "Once upon ", "--n_tokens_to_generate", "3")
    assert result.stdout == continuation("Once upon ", 3)[1] + "\n"
    assert result.stderr.startswith("hint: ") and result.stderr.count("\n") == 1
    assert run(version, "Once upon", "--n_tokens_to_generate", "3").stderr == ""


# ---- output


@every_version
def test_one_prompt_prints_its_continuation_and_nothing_else(run, version, continuation):
    result = run(version, "Once upon a time", "--n_tokens_to_generate", "4")
    assert (result.returncode, result.stdout, result.stderr) == (0, continuation("Once upon a time", 4)[1] + "\n", "")


@pytest.mark.parametrize("version", first_and_last(VERSIONS[1:]), ids=str)
def test_several_prompts_print_each_with_its_continuation(run, version, continuation):
    prompts = ["Once upon a time", "There was a"]
    if not version.pads:
        prompts[1] = prompts[0]
    result = run(version, *prompts, "--n_tokens_to_generate", "4")
    assert result.stdout == "\n\n".join(prompt + continuation(prompt, 4)[1] for prompt in prompts) + "\n"
    assert result.stderr == ""


@first_and_newest
def test_json_holds_plain_ids(run, version, continuation):
    """NumPy's integers would not pass json.dumps."""
    ids, text = continuation("Once", 3)
    record = records(run(version, "Once", "--json", "--n_tokens_to_generate", "3"))["Once"]
    assert (record["ids"], record["text"]) == (ids, text)
    assert all(type(i) is int for i in record["ids"])


@first_and_newest
def test_zero_tokens(run, version):
    """An empty continuation."""
    assert run(version, "Once", "--n_tokens_to_generate", "0").stdout == "\n"
    assert records(run(version, "Once", "--json", "--n_tokens_to_generate", "0"))["Once"]["ids"] == []


@every_padding_version
def test_a_ragged_batch_prints_what_v0_writes_for_each_prompt(run, version, continuation):
    prompts = ["Once upon a time", "The", "There was a poor woodcutter who", "One day the king said", "A fox"]
    found = records(run(version, *prompts, "--json", "--n_tokens_to_generate", "6"))
    assert len(found) == 5
    for prompt in prompts:
        assert found[prompt]["text"] == continuation(prompt, 6)[1]


# ---- mistakes of the user: one line on stderr, exit status 2, no traceback


@first_and_newest
def test_a_number_that_is_none(run, version):
    assert_one_line(run(version, "Once", "--n_tokens_to_generate", "ten"), "--n_tokens_to_generate", "'ten'")


@first_and_newest
def test_a_prompt_that_is_too_long(run, version, tales):
    n_ctx = tales[1]["n_ctx"]
    assert_one_line(run(version, "Once", "--n_tokens_to_generate", n_ctx), "prompt 0", n_ctx, "shorten the prompt")


@first_and_newest
def test_no_prompt(run, version):
    assert_one_line(run(version), "no prompt")


def test_v0_names_the_file_for_several_prompts(run):
    assert_one_line(run(V0, "Once", "Once"), "one prompt, not 2", "gpt2_v1_batching.py")


def test_v1_names_the_file_for_different_lengths(run):
    assert_one_line(run(VERSIONS[1], "Once", "Once upon a time"), "gpt2_v2_padding.py")


# ---- real processes


@pytest.mark.parametrize("version", ENDS[1:], ids=str)
def test_from_a_shell_offline_and_in_a_c_locale(version, continuation):
    """The command as a user types it, all versions with the same text, where two things are traps.

    A connection ends it: conftest.py puts tests/offline on PYTHONPATH. So does a file that is opened without saying
    that it is UTF-8 (as with `-X warn_default_encoding -W error::EncodingWarning`), which Python would not assume here.
    """
    environment = {
        "PYTHONUTF8": "0", "LC_ALL": "C", "PYTHONCOERCECLOCALE": "0", "PYTHONIOENCODING": "",
        "PYTHONWARNDEFAULTENCODING": "1", "PYTHONWARNINGS": "error::EncodingWarning", "HF_HUB_OFFLINE": "0",
    }  # fmt: skip
    result = command("Once upon a time", "--n_tokens_to_generate", "4", script=f"{version.name}.py", env=environment)
    assert (result.returncode, result.stderr) == (0, "")
    assert result.stdout == continuation("Once upon a time", 4)[1] + "\n"
