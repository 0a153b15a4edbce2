from __future__ import annotations

import re

import pytest
import torch
from torch import nn

from allrounder.attacks import ATTACKS, Apgd, AutoAttack, Mim, Pgd, Restarts, Transfer, perturb
from allrounder.attacks.search.base import Search
from allrounder.evaluation.evaluate import EvalOptions, evaluate
from allrounder.evaluation.probes import Probe
from allrounder.objectives import Adversarial
from allrounder.rng import Rng
from allrounder.threats.norms import Linf
from allrounder.threats.threat import Threat
from tests.support.networks import Tiny, Unfoldable, blobs
from tests.unit.attacks.test_custom_loss import Noisy
from tests.unit.attacks.test_perturb import LinfOnly, odd_network, same, state
from tests.unit.attacks.test_perturb import batch as odd_batch
from tests.unit.attacks.test_pgd import batch, network

THREATS = pytest.mark.parametrize(
    "threat", [Threat.parse(t) for t in ("Linf:1/10", "L2:1/2", "L1:3")], ids=str
)
LINF = Threat.parse("Linf:1/10")


def forbidden(x):
    raise AssertionError("the network under attack is not asked")


def net(kind=Tiny, seed=0):
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        return kind()


def fitted(kind=Tiny, seed=0):
    """A network that knows the blobs, after a moment of training."""
    model, split = net(kind, seed).train(), blobs().train
    x, y = split.fetch(torch.arange(len(split))), split.labels
    optimizer = torch.optim.SGD(model.parameters(), lr=0.5)
    for _ in range(30):
        optimizer.zero_grad()
        nn.functional.cross_entropy(model(x), y).backward()
        optimizer.step()
    return model.eval()


@THREATS
@pytest.mark.parametrize(
    "attack",
    [Pgd(steps=3), Mim(steps=3), Restarts(attack=Pgd(steps=2), count=2), Apgd(steps=4), Pgd(steps=2, eot=2)],
    ids=lambda attack: type(attack).__name__,
)
@pytest.mark.parametrize("source", [network, Noisy], ids=["plain", "random"])
def test_the_images_are_those_of_the_attack_on_the_source(attack, source, threat):
    model, (x, y) = source(), batch()
    rng = Rng(5).per_example(torch.tensor([4, 0, 9]))
    result = perturb(Transfer(attack=attack, source=model, name="other"), forbidden, x, y, threat, rng)
    expected = perturb(attack, model, x, y, threat, rng)
    assert torch.equal(result.x, expected.x) and result.passes == expected.passes
    assert result.loss is None and result.fooled is None


@pytest.mark.parametrize("kind", [Tiny, Unfoldable])
def test_an_evaluation_crafts_on_the_source_and_judges_by_the_network(kind):
    target, source, test = fitted(seed=1), fitted(kind, seed=2), blobs().test
    attack, threat = Pgd(steps=5, start="zero"), Threat.parse("Linf:1/4")
    probes = [
        Probe("transfer", Transfer(attack=attack, source=source, name="tiny-2"), threat),
        Probe("pgd", attack, threat),
    ]
    outcome = evaluate(target, test, probes=probes, options=EvalOptions(batch_size=len(test)))
    x, y = test.fetch(torch.arange(len(test))), test.labels
    natural = target(x).argmax(1)
    judged = target(perturb(attack, source, x, y, threat, Rng(0)).x).argmax(1)
    expected = torch.where(natural == y, judged, natural)
    assert outcome.predicted["transfer@Linf:1/4"].tolist() == expected.tolist()
    assert outcome.accuracy("pgd") <= outcome.accuracy("transfer") < outcome.accuracy()


def test_images_that_fool_only_the_source_do_not_count():
    source, test = fitted(), blobs().test
    x, y, threat = test.fetch(torch.arange(len(test))), test.labels, Threat.parse("Linf:1/2")
    attack = Pgd(steps=10)
    assert (source(perturb(attack, source, x, y, threat, Rng(0)).x).argmax(1) != y).all()

    class Steadfast(nn.Module):
        """Always right."""

        def forward(self, x):
            return nn.functional.one_hot(y[: len(x)], 3).float() + 0 * x.sum()

    probe = Probe("transfer", Transfer(attack=attack, source=source, name="fitted"), threat)
    outcome = evaluate(
        Steadfast(), test, probes=[probe], options=EvalOptions(batch_size=len(test), check="note")
    )
    assert outcome.accuracy() == outcome.accuracy("transfer") == 1


@pytest.mark.parametrize("norm_layers", ["eval", "train_frozen"])
@pytest.mark.parametrize("alone", [True, False], ids=["same", "other"])
def test_source_and_network_are_restored(norm_layers, alone):
    source, (x, y) = odd_network(), odd_batch()
    model = source if alone else odd_network()
    before = state(source), state(model)
    attack = Transfer(attack=Pgd(steps=2), source=source, name="odd")
    perturb(attack, model, x, y, LINF, Rng(0), norm_layers=norm_layers)
    assert same(before[0], state(source)) and same(before[1], state(model))


def test_it_is_written_by_name_and_is_one_stage_and_no_search():
    attack = Transfer(attack=Pgd(steps=7), source=network(), name="resnet-18")
    assert str(attack) == f"Transfer(attack={Pgd(steps=7)}, name='resnet-18', digest='{attack.digest}')"
    assert not isinstance(attack, Search) and attack.stages(LINF.norm) == (attack,)
    assert attack.sub_attacks() == (Pgd(steps=7),)
    assert not attack.is_white_box
    assert hash(attack) == hash(Transfer(attack=Pgd(steps=7), source=attack.source, name="resnet-18"))
    with pytest.raises(AttributeError):
        setattr(attack, "name", "other")  # noqa: B010
    for name in ("", "a/b"):
        with pytest.raises(ValueError):
            Transfer(attack=Pgd(), source=network(), name=name)
    with pytest.raises(ValueError):
        Transfer(attack=Pgd(), source="resnet-18", name="a")  # pyright: ignore[reportArgumentType]


def test_a_source_with_other_weights_has_another_text_and_other_results(tmp_path):
    target, test, threat = fitted(seed=1), blobs().test, Threat.parse("Linf:1/4")
    sources = fitted(seed=2), fitted(seed=3)
    attacks = [Transfer(attack=Pgd(steps=5), source=source, name="same") for source in sources]
    assert str(attacks[0]) == str(Transfer(attack=Pgd(steps=5), source=fitted(seed=2), name="same"))
    assert str(attacks[0]) != str(attacks[1]) and len(attacks[0].digest) == 16
    # The same name in the same folder: the digest keeps the results apart.
    outcomes = [
        evaluate(target, test, probes=[Probe("transfer", attack, threat)], out=tmp_path)
        for attack in (*attacks, attacks[0])
    ]
    texts = [outcome.facts["settings"]["transfer@Linf:1/4"] for outcome in outcomes]
    assert texts[0] == texts[2] != texts[1]
    predicted = [outcome.predicted["transfer@Linf:1/4"].tolist() for outcome in outcomes]
    assert predicted[0] == predicted[2] != predicted[1]
    function = Transfer(attack=Pgd(), source=lambda x: sources[0](x), name="function")
    assert str(function) == f"Transfer(attack={Pgd()}, name='function')"


def test_it_works_where_its_attack_works():
    attack = Transfer(attack=LinfOnly(lambda x: x), source=network(), name="a")
    assert LinfOnly.norms == {Linf}
    attack.check_supports(LINF)
    with pytest.raises(ValueError, match="Careless works in Linf, got the threat L2:1"):
        attack.check_supports(Threat.parse("L2:1"))


def test_sequences_run_on_the_source_too():
    model, (x, y) = network(), batch()
    result = perturb(Transfer(attack=AutoAttack(), source=model, name="a"), forbidden, x, y, LINF, Rng(0))
    assert torch.equal(result.x, perturb(AutoAttack(), model, x, y, LINF, Rng(0)).x)


def test_error_on_the_source_names_the_source():
    x, _ = batch()
    attack = Transfer(attack=Pgd(), source=network(classes=4), name="four-classes")
    with pytest.raises(ValueError, match="the largest label is 5, expected at most 3") as caught:
        perturb(attack, network(classes=9), x, torch.tensor([5, 0, 0]), LINF, Rng(0))
    assert caught.value.__notes__ == [f"This happened on four-classes, the source of {attack}."]


def test_recipes_cannot_use_transfer():
    assert Transfer not in ATTACKS.values()
    with pytest.raises(ValueError, match=re.escape(f"expected a table with a kind ({', '.join(ATTACKS)})")):
        Adversarial(threat=LINF, attack=Transfer(attack=Pgd(), source=network(), name="a"))
