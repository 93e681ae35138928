"""Why two objects are alike: what both have that few others have, and what differs."""

import pytest
from harness.remembering import OWNER, run, unit

from opdbus.index.state_store.state_store import StateStore
from opdbus.insight.similarities import Comparison, explain
from opdbus.state.object import ObjectId


def object_ids(*names: str) -> list[ObjectId]:
    """Give units of these names."""
    return [ObjectId("systemd", "unit", name) for name in names]


@pytest.fixture(scope="module")
def found(tmp_path_factory: pytest.TempPathFactory) -> list[Comparison]:
    """Compare a service with others of a host, and with one that is gone."""

    async def work(memory: StateStore) -> list[Comparison]:
        usual = {"masked": False, "slice": "system.slice"}
        others = [
            unit(f"svc{n}.service", description=f"Job {n}", user=f"user{n}", **usual)
            for n in range(30)
        ]
        imap = unit("imap.service", description="IMAP server of mail", user="mail", **usual)
        smtp = unit("smtp.service", description="SMTP server of mail", user="mail", masked=True)
        group = unit("mail", description="mail")
        await memory.publish([*others, imap, smtp, group], OWNER)
        (one, *rest) = object_ids("imap.service", "smtp.service", "svc3.service", "gone", "mail")
        return list(await explain(memory, one, rest))

    return run(tmp_path_factory.mktemp("alike"), work)


def test_what_few_have_is_in_common(found: list[Comparison]) -> None:
    """Words and values that both have are named, the rarest first, and none that most have."""
    smtp, other, *_ = found
    assert smtp.words == ("server", "mail")
    assert smtp.fields == (("user", '"mail"'),)
    assert other == Comparison((), (), ())


def test_fields_on_which_others_agree_are_what_differs(found: list[Comparison]) -> None:
    """A field in which objects rarely differ is told with both values; the user often does."""
    assert found[0].differs == (("masked", "false", "true"),)


def test_only_what_is_of_one_kind_differs(found: list[Comparison]) -> None:
    """An object of another kind has words in common, and one that is gone nothing."""
    _, _, gone, other = found
    assert gone == Comparison((), (), ())
    assert other == Comparison(("mail",), (), ())
