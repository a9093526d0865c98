"""``--emulate`` as a person may get it wrong."""

from __future__ import annotations

import pytest
from typer.testing import CliRunner

from plait.cli.main import app
from plait.comm.emulated import HandOver
from plait.costs.protocol import LinkCost
from plait.prober.emulated import OwnLink
from plait.spec.preset_files import preset_words

runner = CliRunner()
LAUNCHED = {
    "RANK": "0",
    "WORLD_SIZE": "2",
    "LOCAL_RANK": "0",
    "LOCAL_WORLD_SIZE": "2",
    "MASTER_ADDR": "127.0.0.1",
    "MASTER_PORT": "1",
}
VERBS = (("generate", "Hi"), ("train", "--model", "demo", "--data", "text.txt"))


def said(*arguments: str, env: dict[str, str] | None = None) -> tuple[int, str, str]:
    done = runner.invoke(app, [*arguments], env=env)
    return done.exit_code, done.stdout, " ".join(done.stderr.split())


@pytest.mark.parametrize("verb", VERBS)
def test_links_that_are_none(verb: tuple[str, ...]) -> None:
    assert said(*verb, "--emulate", "1gbit") == (
        2,
        "",
        "error: --emulate '1gbit': '1gbit' is no link; write bandwidth and latency, as in 1gbit,200us, or a link "
        "preset, as in ethernet-1g; @2 makes two ranks a host (known: "
        + ", ".join(sorted(preset_words("links")))
        + ")",
    )


@pytest.mark.parametrize("verb", VERBS)
def test_a_launchers_ranks_have_links_already(verb: tuple[str, ...]) -> None:
    """Rank 0 says so; the others end without a word."""
    asked = (*verb, "--emulate", "1gbit,1ms")
    assert said(*asked, env=LAUNCHED) == (
        2,
        "",
        "error: --emulate is for ranks that are started here, and a launcher has started these, whose links are real: "
        "leave --emulate out, or run the command without the launcher",
    )
    assert said(*asked, env=LAUNCHED | {"RANK": "1", "LOCAL_RANK": "1"}) == (2, "", "")


def test_links_faster_than_this_machine(monkeypatch: pytest.MonkeyPatch) -> None:
    own = OwnLink(LinkCost(80e-6, 1.5e9), HandOver())
    monkeypatch.setattr("plait.generation.emulated.own_link", lambda say: own)
    assert said("generate", "Hi", "--pp", "2", "--emulate", "infiniband-hdr") == (
        2,
        "",
        "error: a latency of 5 µs cannot be emulated here: this machine itself takes 80 µs from process to process, 16 "
        "times as long; ask for 80us or more",
    )
