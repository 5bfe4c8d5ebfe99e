import pytest
from hydra._internal.core_plugins.basic_sweeper import BasicSweeper
from hydra.core.override_parser.overrides_parser import OverridesParser
from hypothesis import example, given
from hypothesis import strategies as st
from omegaconf import OmegaConf

from maskzoo.cli.overrides import as_typed, prepare, quote, split_at_commas

PARSER = OverridesParser.create()
AWKWARD = st.sampled_from([*"\\'\"${}()[],=#~&|@!%^*;:<>? \t\nabzé中", "${", "null", "choice("])
TEXT = st.lists(st.one_of(AWKWARD, st.characters(exclude_categories=["Cs"])), max_size=15).map("".join)


def received(arguments: list[str], key: str, multirun: bool = False) -> object:
    """What the configuration holds at `key` once Hydra's real parser and OmegaConf have read the arguments."""
    (override,) = prepare(arguments, multirun)
    parsed = PARSER.parse_override(override)
    assert parsed.key_or_group == key
    return OmegaConf.to_container(OmegaConf.create({"value": parsed.value()}), resolve=True)["value"]


def sweep(arguments: list[str]) -> list[object]:
    """The values of the jobs of a sweep, as Hydra's own sweeper hands them to each job."""
    parsed = [PARSER.parse_override(override) for override in prepare(arguments, multirun=True)]
    (jobs,) = BasicSweeper.split_arguments(parsed, None)
    return [PARSER.parse_override(job[0]).value() for job in jobs]


@pytest.mark.parametrize(
    "rule",
    [
        "causal & window(256)",
        "~causal",
        "causal & (window(8) | sinks(2))",
        "random(probability=0.5, seed=3)",
        "stack(causal, window(4))",
        "dilated(size=4,step=2)",
    ],
)
@pytest.mark.parametrize("key", ["mask", "bias"])
def test_a_rule_arrives_as_typed(key: str, rule: str) -> None:
    assert received([f"{key}={rule}"], key) == rule


@given(TEXT)
@example("echo ${HOME} \\${x} \\\\${y}")
@example('it\'s "quoted" \\')
def test_any_prompt_arrives_verbatim(text: str) -> None:
    prompt = f"x{text}"
    assert received([f"prompt={prompt}"], "prompt") == prompt


@given(TEXT.filter(lambda text: "${" not in text))
@example("a=b/c.txt")
@example("notes, 2024 (final) #3")
@example("1e5")
@example("007")
def test_any_path_arrives_verbatim(text: str) -> None:
    path = f"/tmp/{text}"
    assert received([f"data.path={path}"], "data.path") == path


@given(TEXT.filter(lambda text: len(split_at_commas(f"x{text}")) == 1))
def test_any_rule_without_a_bare_comma_arrives_verbatim(text: str) -> None:
    rule = f"x{text}".strip()
    assert received([f"mask={rule}"], "mask") == rule


@given(st.lists(TEXT, min_size=2, max_size=4))
def test_a_sweep_hands_on_each_quoted_value(texts: list[str]) -> None:
    quoted = ",".join(map(quote, texts))
    assert sweep([f"logger.name={quoted}"]) == texts


@pytest.mark.parametrize(
    ("value", "jobs"),
    [
        ("causal,causal & window(64)", ["causal", "causal & window(64)"]),
        ("window(size=3, both_sides=True) , full", ["window(size=3, both_sides=True)", "full"]),
        ("choice(causal, ~causal & window(3))", ["causal", "~causal & window(3)"]),
        ("'causal','causal & full'", ["causal", "causal & full"]),
    ],
)
def test_a_sweep_of_rules_splits_outside_parentheses(value: str, jobs: list[str]) -> None:
    assert sweep([f"mask={value}"]) == jobs


def test_a_list_of_rules_asks_for_a_sweep() -> None:
    with pytest.raises(ValueError, match=r"mask=causal,full holds 2 rules: add -m"):
        prepare(["mask=causal,full"])
    with pytest.raises(ValueError, match="empty rule"):
        prepare(["mask=causal,"], multirun=True)


@pytest.mark.parametrize("argument", ["model.layers=2,3", "seed=range(1,4)", "model.width=choice(64,128)"])
def test_several_values_ask_for_a_sweep(argument: str) -> None:
    with pytest.raises(ValueError, match="add -m"):
        prepare([argument])
    assert prepare([argument], multirun=True) == [argument]


@pytest.mark.parametrize(
    "argument",
    [
        "optimizer.betas=[0.9,0.99]",
        "data.path=[a.txt,b.txt]",
        "data.path=null",
        "logger.name=${oc.env:HOME}",
        "run_dir=${oc.env:HOME}",
        "mask=${task}",
        "+new=1",
        "++model.layers=2",
        "~logger.name",
        "~logger.name=x",
        "optimizer@other=adamw",
        "hydra.verbose=true",
        "logger.name='a b'",
        "logger.tags={a:1}",
        "logger.name=",
    ],
)
def test_what_hydra_reads_goes_on_untouched(argument: str) -> None:
    assert prepare([argument]) == [argument]


@pytest.mark.parametrize(
    ("argument", "key", "value"),
    [
        ("logger.name=a=b", "logger.name", "a=b"),
        ("logger.name=first#1 (really)", "logger.name", "first#1 (really)"),
        ("plugins=[/tmp/a=b/m.py,n.py]", "plugins", ["/tmp/a=b/m.py", "n.py"]),
        ("plugins=my_masks.py", "plugins", ["my_masks.py"]),
        ("lengths=10,22", "lengths", [10, 22]),
        ("prompt=['def ','class ']", "prompt", ["def ", "class "]),
        ("prompt=[1, 2", "prompt", "[1, 2"),
        ("bias=null", "bias", None),
        ("++mask=causal & full", "mask", "causal & full"),
    ],
)
def test_what_hydra_refuses_is_repaired(argument: str, key: str, value: object) -> None:
    assert received([argument], key) == value


@pytest.mark.parametrize("argument", ["", " ", "=3", "a b=3", "#x=1"])
def test_an_argument_without_a_key_is_refused(argument: str) -> None:
    with pytest.raises(ValueError, match="write key=value"):
        prepare([argument])


def test_a_key_without_a_value_is_refused() -> None:
    with pytest.raises(ValueError, match="'foo' has no value: write foo=VALUE"):
        prepare(["foo"])


@pytest.mark.parametrize("argument", ["mask=causal & window(64)", "data.path=/tmp/a=b", "seed=3", "mask=causal"])
def test_the_words_of_a_job_can_be_typed_again(argument: str) -> None:
    assert as_typed(*prepare([argument])) == argument


@pytest.mark.parametrize("override", ["logger.name='a,b'", "mask='causal,'", "logger.name='range(1,3)'", "seed=null"])
def test_words_that_need_their_quotes_keep_them(override: str) -> None:
    assert as_typed(override) == override
