"""Detection of random words, such as keys and tokens; not digests, versions, paths, public keys."""

import base64
import binascii
import itertools
import re
from collections.abc import Callable
from functools import lru_cache
from typing import Final

from opdbus.state import secret_names
from opdbus.state.long_text import STEP, LazyPattern, finditer, lazy, sub

# The log2 ratio, plus 4, of the probabilities of a character pair in random text and in words of
# hosts. Rows (first character) and columns (second): the letters a to z, then all digits together.
_WEIGHTS: Final = (
    "643476474852327393324466577 254525363563453564453775474 264627724932582493534788586 "
    "245514572775563584464778695 443355576773426571237364687 354533771963662694244967695 "
    "362627532974533593354878796 173627883885561494633888578 423445498973423484327596969 "
    "164527774766663456263657788 255514562964563585343757687 376427791973782498444688598 "
    "145326783973472277454778697 373324273756643697224587686 553485486753313492332556789 "
    "275426533963672482334788397 465566677772475575520655777 264416582844452595333489478 "
    "463526433945563466314669387 274616732965673593344858476 535246494763426393227785876 "
    "265617481886464596555897995 156527642966542684357767597 463434763965276385425674464 "
    "454556575764235275116777765 255615752765553675454656446 444455799889889798755897992"
)
_LETTERS: Final = 26
_DIGIT: Final = 2 * _LETTERS
_OTHER: Final = _DIGIT + 1
_COUNT: Final = _OTHER + 1
_CODES: Final = bytes(
    code - ord("a")
    if chr(code).islower()
    else code - ord("A") + _LETTERS
    if chr(code).isupper()
    else _DIGIT
    if chr(code).isdigit()
    else _OTHER
    for code in range(128)
) + bytes([_OTHER] * 128)
# The score from which a word counts as random. None of 36,000 words of hosts reaches it; 99 in 100
# words of 20 random letters and digits do.
_RANDOM: Final = 12
_JOINT: Final = 2
# The score for words without small letters: serial numbers of hardware are random, but short.
_RANDOM_SERIAL: Final = 40
# Only the beginning of a longer word is scored.
_MAX_JUDGED: Final = 2048
MIN_LENGTH: Final = 16
_UUID: Final = 36

# Classes of characters: digits, letters a to f, other small letters, capitals, joiners of words.
_CLASSES: Final = bytes(
    ord(
        "0"
        if chr(code).isdigit()
        else "h"
        if chr(code) in "abcdef"
        else "a"
        if chr(code).islower()
        else "A"
        if chr(code).isupper()
        else "-"
        if chr(code) in "_-+"
        else " "
    )
    for code in range(128)
) + bytes(b" " * 128)
_LONG: Final = re.compile(rb"[^ ]{%d,}+" % MIN_LENGTH)
# A random word has one of these pairs of classes unless it is purely hexadecimal.
_CHANGES: Final = (b"0a", b"0A", b"0h", b"aA", b"hA")

_WORD: Final = re.compile(r"[A-Za-z0-9+/_=.~%-]{16,}+")
# Digests, revisions and ids: hexadecimal digits after at most a short prefix.
_HEXADECIMAL: Final = re.compile(
    r"(?<![A-Za-z0-9])(?:0x|g|git|v|i-|u|r)?(?:[0-9a-f]{6,}+|[0-9A-F]{6,}+)(?![A-Za-z0-9])"
)
# Names of disks by bus, model and serial number; ids of LVM; public keys of SSH and age; keys of
# DNS; names of onion services.
_HARMLESS: Final = re.compile(
    r"(?:ata|nvme|scsi|usb|mmc)-[A-Z][A-Za-z0-9.-]*(?:_[A-Za-z0-9.-]+)*_[A-Z0-9]{8,20}"
    r"|(?:LVM-)?[A-Za-z0-9]{6}(?:-[A-Za-z0-9]{4}){5}-[A-Za-z0-9]{6}|(?:dm-uuid-)?LVM-[A-Za-z0-9]{64}"
    r"|AAAA[BCEGI][A-Za-z0-9+/]{16,}+=*|age1[a-z0-9]{58}|AwEAA[\w+/]{16,}+=*|[a-z2-7]{56}\.onion"
    # modaliases of the kernel
    r"|v[\dA-F]{4,8}[pd][\dA-F]{4,8}(?:[a-z]{1,3}[\dA-F]{2,8}){2,9}"
)
# Hexadecimal tokens with an issuer's prefix, and private keys.
_HEX_TOKEN: Final = re.compile(r"(?:\w+=)?(?:[a-z]{2}_[0-9a-f]{32,}|0x[0-9a-f]{64})")
# An id in front of a redacted secret is part of the credential.
_ID_BEFORE: Final = re.compile(r"(?<![\w-])(?:(?:0x)?[0-9a-f]{16,}|[0-9a-f-]{36})(?=:\[redacted\])")
_FOLDER: Final = re.compile(
    r"[.~]{0,2}/(?:etc|var|usr|run|opt|home|root|srv|mnt|media|tmp|proc|sys|dev|boot|nix|gnu|lib|lib64"
    r"|bin|sbin|snap|data|pool|store|config)/"
)
# The name before a word, or an algorithm at its beginning, marks digests and public keys.
_NAMED_BEFORE: Final = re.compile(r"([\w .-]{1,40}?)[\"']?\s?[=:/]\s{0,4}[\"']?\Z")
_DIGEST: Final = re.compile(r"(?i)(?:sha-?\d{0,3}|sha[23]-\d{3}|md5|blake\w{0,4}|h1|crc32c?)[-=:/]")
_DIGEST_BEFORE: Final = re.compile(r"(?i)(?<![a-z])(?:sha-?\d{1,3}|md5|blake\w{0,4}|h1)[:=/]\Z")
# A host in known_hosts: `|1|salt|hash`; public keys of WireGuard's peers and of DNS.
_HASHED_HOST: Final = re.compile(r"(?:\|1\|(?:[\w+/=]{28}\|)?|\b(?:peer|DNSKEY(?: \d+){3}) )\Z")
_PUBLIC: Final = re.compile(
    r"-----BEGIN (?:[A-Z0-9 ]{0,40}(?:CERTIFICATE|PUBLIC KEY|PARAMETERS|SIGNATURE|CRL|CMS|PKCS7)"
    r"[A-Z0-9 ]{0,40}|PGP MESSAGE)-----[^-]*+(?:-{1,4}+[^-]++)*+"
)
# Base64 of ASCII text, by the characters that are possible at each place of a group of four.
_QUAD: Final = "[A-Za-f][A-HQ-Xg-nw-z0-3][ABEFIJMNQRUVYZcdghklopstwx014589]"
_ASCII: Final = re.compile(
    rf"(?:{_QUAD}[A-Za-z0-9+/_-])++"
    r"(?:[A-Za-f][A-HQ-Xg-nw-z0-3](?:[ABEFIJMNQRUVYZcdghklopstwx014589]=?|==)?)?"
)
_USER_AND_PASSWORD: Final = re.compile(r"\A[\w.@+-]{1,64}:(?!//)(?=\S{4,}+\Z)[^\s/:]\S*")
_DER_SEQUENCE: Final = 0x30

# Published formats of tokens: a prefix, and the characters that follow it.
_CHARACTERS: Final = {
    "hex": "[0-9a-fA-F]",
    "alnum": "[A-Za-z0-9]",
    "word": r"[\w-]",
    # host names have no capitals; both lookaheads are bounded, so that matching is linear
    "mixed": r"(?=[\w-]{0,39}?\d)(?=[\w-]{0,39}?[A-Z])[\w-]",
    "dots": r"[\w.-]",
    "base64": r"[\w+/=.-]",
    "any": r"""[^\s"'<>,;]""",
}
# Each row: the class of the following characters, their minimum number, and the prefixes.
_ROWS: Final = """
hex 20 dapi dop_v1_ doo_v1_ dor_v1_ sbp_ sntryu_ lin_oauth_ glptt- rubygems_ pul- squ_ sqp_ sqa_
hex 20 bkua_ shpat_ shpca_ shppa_ shpss_ shippo_live_ shippo_test_ FLWSECK- FLWSECK_TEST-
hex 20 sk-or-v1- xkeysib- xsmtpsib-
hex 32 sk_ sk- SK md5 key- e2b_ fc-
word 16 access-sandbox- access-development- access-production- HRKU- pat-na1- pat-eu1-
word 16 sk-lf- NRJS- PMAK-
word 40 v1.0-
alnum 16 gsk_ pcsk_ tvly- pnu_ hcaik_ hcxik_ hcalk_ hcbik_ nfp_ cfut_ cfat_ napi_ rdme_ ntn_
alnum 16 lin_api_ secret_ bkct_ LTAI AKID AKCp cmVmdGtuOj ATBB NRAK- NRII- NRRA- EZAK EZTK vcp_ nbp_
alnum 16 api_org_ oy2 SCW
mixed 12 GR1348941 xai- pplx- GOCSPX- sntrys_ glsa_ sb_secret_ tgp_v1_ nvapi- pylf_v1_
mixed 12 pdus+ syt_ sq0csp- sq0atp- tfp_ figd_ CFPAT- AQVN fo1_ fm2_ pscale_pw_ pscale_tkn_
mixed 12 pscale_oauth_ dnkey- ABSK EAACE fio-u- 1//0 ops_eyJ duffel_live_ duffel_test_ IGQV
word 16 SWMTKN-1- lsv2_pt_ lsv2_sk_
mixed 12 pypi- npm_ hf_ dckr_oat_ EAAA CCIPAT_ pcsk_
dots 12 ATATT3x ATCTT3x dp.pt. dp.st. dp.ct. dp.sa. dp.scim. dp.audit. dt0c01. dt0s01. sk.eyJ
dots 12 tk.eyJ WPL_AP1. sntrys_eyJ
base64 24 b3BlbnNzaC1rZXktdjE BQIAAA glc_eyJ
dots 12 xoxe.
word 30 AIza
any 12 pbkdf2_sha256$ pbkdf2_sha1$ bcrypt_sha256$ grub.pbkdf2. access_token$ ENC[AES
"""
# Formats that are more than a prefix, by a string that each match contains.
_SHAPED: Final = {
    "$P$": r"\$P\$[./\w]{20,}+",
    "$S$": r"\$S\$[./\w]{20,}+",
    "$A$": r"\$A\$\d{3}\$[^\s:\"']++",
    "AGE-": r"AGE-(?:PLUGIN-[\w-]++|SECRET-KEY-1\w++)",
    # a PEM key encoded in base64 again, but no certificate and no public key
    "LS0tLS1CRUdJTiB": r"LS0tLS1CRUdJTiB(?!DRVJU|QVUJM)[\w+/=-]{8,}+",
    "*": r"(?<![\w*])\*[0-9A-F]{40}(?![0-9A-Fa-f])",
    "nsec1": r"(?<![A-Za-z0-9])nsec1[a-z0-9]{40,}+",
    ":AA": r"(?<![\w:])(?:bot)?\d{8,10}:AA[\w-]{30,}+",
    ":APA91b": r"(?<![\w-])[\w-]{8,}+:APA91b[\w-]{20,}+",
    "00D": r"(?<![A-Za-z0-9])00D[A-Za-z0-9]{12,15}![\w.]{20,}+",
    "p-": r"(?<![\w.-])p-[a-z0-9]{12}:[\w+/=-]{40,}+",
    # prefixes that are also parts of host names
    **{
        begin: rf"(?<![\w-]){begin}(?=[a-z0-9]{{0,19}}[A-Z]|[0-9a-f_]{{40}})(?=[A-Za-z]{{0,19}}\d)"
        r"[A-Za-z0-9_]{20,}+"
        for begin in "re_ sgp_ phx_ phc_ jina_ npg_ cio".split()
    },
    "0x0": r"(?<!\w)0x0[12]00[0-9A-Fa-f]{48,}+",
    "NRAL": r"(?<![A-Za-z0-9])[0-9a-f]{36}NRAL",
    "-": r"(?<![A-Za-z0-9-])[0-9a-f]{32}-[0-9a-f]{8}-[0-9a-f]{8}(?![A-Za-z0-9-])",
    "pat": r"(?<![A-Za-z0-9])pat[A-Za-z0-9]{14}\.[0-9a-f]{64}",
    "-us": r"(?<![A-Za-z0-9])[0-9a-f]{32}-us\d{1,2}(?!\w)",
    "Q~": r"(?<![\w.~-])[\w.-]{4}Q~[\w.~-]{30,}+",
    ".atlasv1.": r"(?<![A-Za-z0-9])[A-Za-z0-9]{14}\.atlasv1\.[\w-]++",
    "GAES256": r"ENC\[AES256_GCM[^\]\s]*+",
}
# The string that each match contains, and the format's pattern.
SHAPED: Final = tuple((mark, lazy(pattern)) for mark, pattern in _SHAPED.items())
_START: Final = 2
# Every position at which a format may begin, with its first two characters.
STARTS: Final = re.compile(rf"(?<![A-Za-z0-9])(?=(\S{{{_START}}}))")
# Patterns by the first two characters of their prefixes; matches without a digit do not count.
FORMATS: Final[dict[str, LazyPattern]] = {}
_BY_START: Final[dict[str, list[str]]] = {}
for _row in _ROWS.strip().split("\n"):
    _follow, _fewest, *_prefixes = _row.split()
    for _prefix in _prefixes:
        _pattern = rf"{re.escape(_prefix)}{_CHARACTERS[_follow]}{{{_fewest},}}+"
        _BY_START.setdefault(_prefix[:_START], []).append(_pattern)
for _start, _patterns in _BY_START.items():
    FORMATS[_start] = lazy(rf"(?<![A-Za-z0-9])(?:{'|'.join(_patterns)})")


def may_hold_words(text: str) -> bool:
    """Return whether a text has a word long and mixed enough to be a token."""
    classes = text.encode(errors="replace").translate(_CLASSES)
    return any(map(_is_mixed, _LONG.findall(classes)))


def _is_mixed(word: bytes) -> bool:
    """Return whether the classes of a word's characters fit a token, not a digest or a name."""
    if not any(map(word.__contains__, _CHANGES)):
        return False
    return b"a" in word or b"A" in word or (len(word) > _UUID and b"-" in word)


def hide_words(text: str, redacted: str, redact: Callable[[str], str], *, normal: bool) -> str:
    """Replace tokens of known formats and, unless `normal`, words that look random.

    A word that is base64 of text is replaced if `redact` changes that text.
    """
    patterns = [pattern for mark, pattern in SHAPED if mark in text]
    for at in range(0, len(text), STEP):
        starts = STARTS.findall(text, at, at + STEP + 1)
        patterns += [FORMATS[start] for start in FORMATS.keys() & starts]
    for pattern in dict.fromkeys(patterns):
        text = sub(pattern(), lambda m: redacted if any(map(str.isdigit, m[0])) else m[0], text)
    if normal:
        return text
    if "-----BEGIN" not in text:
        text = sub(_WORD, lambda match: _hide_word(match, redacted, redact), text)
        return sub(_ID_BEFORE, redacted, text)
    parts, at = [], 0
    for public in finditer(_PUBLIC, text):
        parts += [hide_words(text[at : public.start()], redacted, redact, normal=False), public[0]]
        at = public.end()
    rest = sub(_WORD, lambda match: _hide_word(match, redacted, redact), text[at:])
    return "".join([*parts, rest])


def _hide_word(match: re.Match[str], redacted: str, redact: Callable[[str], str]) -> str:
    word = match[0]
    before = match.string[max(0, match.start() - 48) : match.start()]
    named = None
    if before.rstrip(" \t\n\"'").endswith(("=", ":", "/")):
        named = _NAMED_BEFORE.search(before)
    if (
        _FOLDER.match(word)
        or _DIGEST_BEFORE.search(before)
        or _HASHED_HOST.search(before)
        or (named and secret_names.is_of_random(named[1]))
    ):
        return word
    name, equals, value = word.partition("=")
    if equals and value.strip("="):
        if _DIGEST.match(word) or secret_names.is_of_random(name):
            return word
        return f"{name}={_hide_parts(value, redacted, redact)}"
    return _hide_parts(word, redacted, redact)


def _hide_parts(word: str, redacted: str, redact: Callable[[str], str]) -> str:
    """Return a word redacted, or a path with its random parts redacted."""
    if _FOLDER.match(word) or _DIGEST.match(word):
        return word
    if "/" not in word or not word.startswith("/"):
        hidden = _judge(word, redact)
        if hidden is not None:
            return redacted if hidden else word
    if "/" not in word:
        return word
    parts = word.split("/")
    return "/".join(redacted if len(p) >= MIN_LENGTH and _judge(p, redact) else p for p in parts)


def _judge(word: str, redact: Callable[[str], str]) -> bool | None:
    """Return whether a word is secret; None if only parts of it may be."""
    plain = word.rstrip(".")
    if _HARMLESS.fullmatch(plain):
        return False
    if _ASCII.fullmatch(plain) and (text := _decode(plain)):
        return redact(text) != text or bool(_USER_AND_PASSWORD.fullmatch(text))
    if word.startswith("M") and _is_public_der(word):
        return False
    return True if _HEX_TOKEN.fullmatch(plain) or looks_random(plain) else None


def _decode(word: str) -> str:
    """Return the text that a word encodes in base64; empty if it is no printable text."""
    try:
        data = base64.b64decode(word.rstrip("=") + "=" * (-len(word.rstrip("=")) % 4), b"-_")
        text = data.decode()
    except (ValueError, binascii.Error):
        return ""
    return text if text.replace("\n", "").replace("\t", "").isprintable() else ""


def _is_public_der(word: str) -> bool:
    """Return whether a word is base64 of a certificate or public key: DER with two SEQUENCEs."""
    try:
        head = base64.b64decode(word[:12])
    except (ValueError, binascii.Error):
        return False
    at = 2 + (head[1] & 0x7F if head[1] & 0x80 else 0)
    return head[0] == _DER_SEQUENCE and at < len(head) and head[at] == _DER_SEQUENCE


def looks_random(word: str) -> bool:
    """Return whether part of a word is improbable in names and words of any language."""
    bare = _HEXADECIMAL.sub("-", word[:_MAX_JUDGED])
    if len(bare) < MIN_LENGTH or not bare.isascii():
        return False
    weights = _weights()
    best = best_serial = current = 0
    has_small = False
    for before, code in itertools.pairwise(bare.encode().translate(_CODES)):
        current += weights[before * _COUNT + code] if code != _OTHER else -_JOINT
        has_small = has_small or code < _LETTERS
        if current <= 0:
            current, has_small = 0, False
        elif has_small:
            best = max(best, current)
        else:
            best_serial = max(best_serial, current)
    return best >= _RANDOM or best_serial >= _RANDOM_SERIAL


@lru_cache(maxsize=1)
def _weights() -> list[int]:
    """Return the weights of all pairs of codes; a capital after a small letter weighs more."""
    found: list[int] = []
    rows = [[int(weight) - 4 for weight in row] for row in _WEIGHTS.split()]
    letters, digits = rows[:-1], rows[-1]
    for small, large in ((-1, 3), (0, 0)):
        for row in letters:
            *of_letters, of_digit = row
            found += [weight + small for weight in of_letters]
            found += [weight + large for weight in of_letters]
            found += [of_digit, 0]
    return [*found, *digits[:-1], *digits, 0, *[0] * _COUNT]
