"""Published formats of tokens: a fixed prefix and the characters that follow it."""

import re
from typing import Final

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
mixed 12 dckr_oat_ EAAA CCIPAT_ pcsk_
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
    "NRAL": r"(?<![A-Za-z0-9])[0-9a-f]{36}NRAL",
    "-": r"(?<![A-Za-z0-9-])[0-9a-f]{32}-[0-9a-f]{8}-[0-9a-f]{8}(?![A-Za-z0-9-])",
    "pat": r"(?<![A-Za-z0-9])pat[A-Za-z0-9]{14}\.[0-9a-f]{64}",
    "-us": r"(?<![A-Za-z0-9])[0-9a-f]{32}-us\d{1,2}(?!\w)",
    "Q~": r"(?<![\w.~-])[\w.-]{4}Q~[\w.~-]{30,}+",
    ".atlasv1.": r"(?<![A-Za-z0-9])[A-Za-z0-9]{14}\.atlasv1\.[\w-]++",
    "GAES256": r"ENC\[AES256_GCM[^\]\s]*+",
}


# The string that each match contains, and the format's pattern.
SHAPED: Final = tuple((mark, re.compile(pattern)) for mark, pattern in _SHAPED.items())
_START: Final = 2
# Every position at which a format may begin, with its first two characters.
STARTS: Final = re.compile(rf"(?<![A-Za-z0-9])(?=(\S{{{_START}}}))")


def _formats() -> dict[str, re.Pattern[str]]:
    """Return the patterns by the first two characters of their prefixes."""
    found: dict[str, list[str]] = {}
    for row in _ROWS.strip().split("\n"):
        characters, fewest, *beginnings = row.split()
        for begin in beginnings:
            pattern = rf"{re.escape(begin)}{_CHARACTERS[characters]}{{{fewest},}}+"
            found.setdefault(begin[:_START], []).append(pattern)
    return {
        start: re.compile(rf"(?<![A-Za-z0-9])(?:{'|'.join(patterns)})")
        for start, patterns in found.items()
    }


# A match without a digit does not count.
FORMATS: Final = _formats()
