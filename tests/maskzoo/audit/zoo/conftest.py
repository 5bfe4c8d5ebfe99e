"""How the specimens of the zoo are judged: by the audit, and by replacing single inputs without it."""

import copy

import pytest
import torch

torch.set_num_threads(1)


@pytest.fixture
def found():
    """Runs the audit on a planted fault; it must be the one error, or warning, that is found."""

    def judge(specimen, kind, **expected):
        from maskzoo.audit import check

        torch.manual_seed(0)
        case = specimen()
        violates = case.pop("violates", lambda query, key: key > query)
        report = check(**case)
        also = set(expected.pop("also", ()))
        kinds = {finding.kind for finding in report.findings}
        wanted = [finding for finding in report.findings if finding.kind == kind]
        assert wanted, f"{kind} not found\n{report}"
        errors = {finding.kind for finding in report.findings if finding.severity == "error"}
        assert errors <= {kind, *also}, f"named {sorted(errors)}\n{report}"
        warnings = kinds - errors
        assert warnings <= {kind, "blind spot", *also}, f"named {sorted(warnings)}\n{report}"
        assert report.ok == (not errors)
        for name, value in expected.items():
            assert value in {getattr(finding, name) for finding in wanted}, f"{name} is not {value}\n{report}"
        if kind == "leak":
            assert any(_moves(case, finding, violates) for finding in wanted), f"the named pair is none\n{report}"
        return report

    return judge


@pytest.fixture
def clean():
    """Runs the audit on a sound model: nothing may be found, and it must be sound by plain replacement too."""

    def judge(specimen):
        from maskzoo.audit import check

        torch.manual_seed(0)
        case = specimen()
        reached = case.pop("reached", None)
        report = check(**case)
        assert not report.findings, str(report)
        assert report.ok
        if reached is not None:
            last = report.influence[-1].nonzero()[:, 0].tolist()
            assert last == [report.influence.shape[1] - 1 - back for back in sorted(reached, reverse=True)], str(report)
        return report

    return judge


def watched_of(case):
    """The input that is watched, and how to give the inputs with another one."""
    inputs, name = case["inputs"], case.get("watch")
    if isinstance(inputs, torch.Tensor):
        return inputs, lambda other: ((other,), {})
    if isinstance(inputs, dict):
        name = name if name is not None else next(iter(inputs))
        return inputs[name], lambda other: ((), {**inputs, name: other})
    place = name or 0
    return inputs[place], lambda other: ((*inputs[:place], other, *inputs[place + 1 :]), {})


def outputs_of(case, value):
    """The tensor [B, Tq, ...] in what a model returns."""
    if case.get("output") is not None:
        return case["output"](value)
    if isinstance(value, torch.Tensor):
        return value
    for name in ("logits", "last_hidden_state"):
        if hasattr(value, name):
            return getattr(value, name)
    return value["logits"] if isinstance(value, dict) else value[0]


@torch.no_grad()
def _moves(case, finding, violates):
    """Whether the named pair is forbidden and the output really moves with the input, in any setting."""
    query, key = finding.query, finding.key
    if query is None or key is None or not violates(query, key):
        return False
    values, given = watched_of(case)
    row = finding.row or 0
    for length in [values.shape[1], *range(max(query, key) + 1, values.shape[1])]:
        cut = values[:, :length]
        for training, autocast in [(False, False), (True, False), (False, True)]:
            model = copy.deepcopy(case["model"])
            if isinstance(model, torch.nn.Module):
                model.train(training)

            def run(tensor, model=model, autocast=autocast):
                arguments, named = given(tensor)
                torch.manual_seed(1)
                with torch.autocast("cpu", torch.bfloat16, enabled=autocast):
                    return outputs_of(case, model(*arguments, **named))[row, query].clone()

            try:
                before = run(cut)
                generator = torch.Generator().manual_seed(7)
                for step in range(1, 21):
                    other = cut.clone()
                    if cut.is_floating_point():
                        other[row, key] = torch.randn(cut[row, key].shape, generator=generator)
                    else:
                        other[row, key] = (cut[row, key] + step) % (int(cut.max()) + 1)
                    if not torch.equal(before, run(other)):
                        return True
            except (RuntimeError, ValueError):
                continue
    return False
