"""The hand-off token: parsed, written and judged (design 3, reports B61, B62, B71, B76)."""

import pytest

from hami.core.errors import DecodeError
from hami.core.objects import ObjectMeta, Pod, PodSpec, PodStatus
from hami.core.token import Token, TokenAction, encode_token, judge, parse_token

NOON = 1_787_313_600  # 2026-08-21T12:00:00Z
EXPIRY_S = 300.0
HELD = Token(NOON, "default", "train-0")


def owner(
    *, node: str = "", phase: str = "Pending", bind_phase: str = "", deleted: bool = False, name: str = "train-0"
) -> Pod:
    annotations = {"hami.io/bind-phase": bind_phase} if bind_phase else None
    stamp = "2026-08-21T12:00:01Z" if deleted else None
    meta = ObjectMeta(name=name, namespace="default", annotations=annotations, deletion_timestamp=stamp)
    return Pod(meta, PodSpec(node_name=node), PodStatus(phase=phase))


@pytest.mark.parametrize(
    ("text", "token"),
    [
        ("2026-08-21T12:00:00Z,default,train-0", HELD),
        ("2026-08-21T20:00:00+08:00,default,train-0", HELD),
        ("2026-08-21T12:00:00.123456789Z,default,train-0", HELD),
        ("2026-08-21T12:00:00Z", Token(NOON, "", "")),
    ],
)
def test_tokens_of_every_release_are_read(text: str, token: Token) -> None:
    assert parse_token(text) == token


@pytest.mark.parametrize(
    "text",
    ["", "x,y", "x", "2026-08-21T12:00:00Z,a", "2026-08-21T12:00:00Z,a,b,c", "2026-08-21T12:00:00Z,,", "2026-08-21",
     "2026-13-21T12:00:00Z", "2026-08-21T12:00:00,default,p"],
)  # fmt: skip
def test_other_texts_raise(text: str) -> None:
    with pytest.raises(DecodeError, match=r"hami\.io/mutex\.lock"):
        parse_token(text)


def test_written_tokens_are_utc_and_read_back() -> None:
    text = encode_token("default", "train-0", NOON + 0.9)
    assert text == "2026-08-21T12:00:00Z,default,train-0"
    assert parse_token(text) == HELD
    assert HELD.key == "default/train-0"
    assert Token(NOON, "", "").key == ""


@pytest.mark.parametrize(
    ("who", "age_s", "action", "why"),
    [
        (None, 0, TokenAction.FREE, "is gone"),
        (owner(phase="Failed"), 0, TokenAction.FREE, "has ended (Failed)"),
        (owner(phase="Succeeded", node="n1"), 0, TokenAction.FREE, "has ended (Succeeded)"),
        (owner(node="n2"), 0, TokenAction.FREE, "is bound to n2"),
        (owner(node="n1", bind_phase="success"), 0, TokenAction.FREE, "has bind phase success"),
        (owner(node="n1", bind_phase="failed"), 0, TokenAction.FREE, "has bind phase failed"),
        (owner(node="n1", phase="Running"), 0, TokenAction.FREE, "is running"),
        (owner(deleted=True), 0, TokenAction.FREE, "is being deleted"),
        (owner(node="n1", deleted=True, bind_phase="allocating"), 0, TokenAction.KEEP, "on its way"),
        (owner(node="n1", bind_phase="allocating"), 299, TokenAction.KEEP, "on its way"),
        (owner(node="n1", bind_phase="allocating"), 300, TokenAction.FREE, "not served within 300 s"),
        (owner(), 299, TokenAction.KEEP, "on its way"),
        (owner(), 300, TokenAction.FENCE, "alive and was not bound"),
        (owner(), -299, TokenAction.KEEP, "on its way"),
        (owner(), -3600, TokenAction.FENCE, "alive and was not bound"),
    ],
)
def test_a_named_token_is_judged_by_its_owner(who: Pod | None, age_s: float, action: TokenAction, why: str) -> None:
    verdict = judge(HELD, who, "n1", NOON + age_s, EXPIRY_S)
    assert (verdict.action, why in verdict.why) == (action, True), verdict


def test_a_token_without_owner_is_honoured_until_it_expires() -> None:
    legacy = Token(NOON, "", "")
    assert judge(legacy, None, "n1", NOON + 10, EXPIRY_S).action is TokenAction.KEEP
    assert judge(legacy, None, "n1", NOON + 301, EXPIRY_S).action is TokenAction.FREE
