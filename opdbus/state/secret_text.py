"""Secrets inside a string: by the name before them, by their place, or by their shape."""

from __future__ import annotations

import re
from functools import lru_cache
from typing import TYPE_CHECKING, Final

from opdbus.state.secret_names import is_plural, is_secret_name

if TYPE_CHECKING:
    from collections.abc import Iterable

REDACTED: Final = "[redacted]"

# What stands under a secret name and is none: a policy, a file, a public key, a version.
_HARMLESS = re.compile(
    r"(?i:yes|no|true|false|on|off|none|null|nil|enabled|disabled|required|optional|prompt|ask"
    r"|prohibit-password|without-password)"
    r"|(?:file:(?://)?)?/(?:etc|var|usr|run|opt|home|root|srv|mnt|media|tmp|proc|sys|dev|boot|nix"
    r"|lib|lib64|bin|sbin|snap|data|config|secrets|certs)(?:/[\w.@%+~-]+)*/?"
    r"|[\w./@~-]+\.(?:key|pem|crt|cer|p12|pfx|jks|gpg|asc|conf|ini|json|ya?ml|env|service|socket)"
    r"|(?:ssh|ecdsa)-[\w@.-]+ AAAA.*|v\d+(?:\.\d+){1,3}|\d+(?:\.\d+){2,3}|\*{3,}"
)
# ... and what is none under one name only: a pass of fsck, a flow's label, a name service's
# sources, a working directory.
_HARMLESS_UNDER: Final = {
    "pass": re.compile(r"\d"),
    "cookie": re.compile(r"\d{1,20}|0x[0-9a-fA-F]{1,16}"),
    "passwd": re.compile(r"(?:files|compat|systemd|sss|ldap|nis|winbind|db|altfiles)\b.*"),
    "pwd": re.compile(r"/.*"),
    "oldpwd": re.compile(r"/.*"),
}
# What is a secret under a name that mostly stands before harmless values.
_BASIC_AUTH = re.compile(r"(?=.*[A-Z])(?=.*[a-z])(?:[A-Za-z0-9+/]{4}){3,}(?:[A-Za-z0-9+/]{2,3}=+)?")
_RANDOM = re.compile(r"(?!AAAA)(?=.*[A-Z])(?=.*[a-z])(?=.*\d)[A-Za-z0-9+/_-]{32,}={0,2}")
_MATERIAL: Final = {"auth": _BASIC_AUTH, "_auth": _BASIC_AUTH, "key": _RANDOM, "Key": _RANDOM}
# Programs, and the flags of theirs whose value is a secret although their name does not say so.
_FLAGS: Final = {
    "sshpass mysql mysqldump mysqladmin mysqlimport mariadb mariadb-dump mariadb-admin mongo"
    " mongosh mongodump mongorestore mongoexport usermod useradd 7z 7za 7zr login": ("-p",),
    "curl": ("-u", "-U", "--user", "--proxy-user"),
    "http https xh": ("-a", "--auth"),
    "redis-cli": ("-a",),
    "zip unzip ipmitool mosquitto_pub mosquitto_sub": ("-P",),
    "ldapsearch ldapadd ldapmodify ldapdelete ldapwhoami ldappasswd": ("-w",),
    "smbclient rpcclient": ("-U",),
    "snmpget snmpset snmpwalk snmpbulkwalk": ("-c", "-A", "-X"),
    "ssh-keygen": ("-N", "-P"),
    "xfreerdp xfreerdp3 wlfreerdp": ("/p:",),
    "nmcli": ("password", "wifi-sec.psk", "802-11-wireless-security.psk"),
}
_FLAGS_OF: Final = {program: flags for many, flags in _FLAGS.items() for program in many.split()}
# Possessive repeats of groups are wrong in Python before 3.11.5 (gh-106052): none below.
# A value that is not quoted: up to a space, a closing quote, or the next key of a;b=c.
_BARE = (
    r"""(?:(?![;&,]\s?[A-Za-z][\w.-]{0,40}=)[^\s"'])"""
    r"""(?:(?![;&,]\s?[A-Za-z][\w.-]{0,40}=)[^\s"']|["'](?=[^\s"',;:)\]}\\]))*"""
)
_KEY = re.compile(
    r"""(?<![\w.-])(?:(?P<key>[\w.-]++)\\*+["']?\]?\s?[^\S\n]*+(?::=|=>|=|:(?!:|//))"""
    r"""|(?P<flag>--?[A-Za-z][\w.-]*+)(?=\s))"""
    # a value may begin on the next line, if that is indented and no key of its own
    r"""(?P<gap>[^\S\n]*+(?:(?:[|>][+-]?|\\)?\n[^\S\n]++(?!["']?[\w.-]++["']?\s?[=:]))?)"""
)
_QUOTE = re.compile(r"""\\*+["']""")
_INSIDE: Final = {q: re.compile(rf"[^{q}\\]*+(?:\\.[^{q}\\]*+)*", re.DOTALL) for q in "\"'"}
_WORD = re.compile(_BARE)
_LINE = re.compile(rf"{_BARE}(?:[^\S\n]++(?![\w.-]++\s?[=:])(?!--?\w){_BARE})*")
# Words that are secret only after another one, as in `API key: x`.
_SECOND: Final = frozenset({"key", "phrase", "code", "pin"})
_BEFORE = re.compile(r"[A-Za-z-]{1,40}[ ](?=\Z)")

_PEM = re.compile(
    r"-{4,5} ?BEGIN [A-Z0-9 ]*PRIVATE KEY(?: BLOCK)? ?-{4,5}"
    r"(?:.*?-{4,5} ?END [A-Z0-9 ]*PRIVATE KEY(?: BLOCK)? ?-{4,5}|.*)"
    r"|(?<=Private-Lines: ).*",
    re.DOTALL,
)
# user:password@tcp(host) and user:password@host:port
_SCHEMELESS = (
    r"""((?<![\w:/@.%+-])(?!(?i:sips?|mailto|ssh|git|xmpp|https?):)[\w.%+-]++:)(?!//)"""
    r"""[^\s:@"'/]++(@)(?=(?:tcp|udp|unix)\(|(?!sha\d)[\w.-]++:\d{2,5}(?!\w)|localhost\b)"""
)
# lines of configuration files where only a space divides name and value
_SPACED_LINE = (
    r"(?m)(^[^\S\n]{0,8}(?:requirepass|masterauth|bindpw|rootpw|psk|wpa_psk|wpa_passphrase"
    r"|rocommunity|rwcommunity|api[_-]?key)[^\S\n]++)\S++"
)
# <password>x</password>
_ELEMENT = (
    r"(<(?:[\w:.-]*(?i:password|passwd|secret|token|apikey|psk))\b[^<>]*+>)"
    r"[^<]++(</)"
)
# Each pattern's match is a secret but for its groups, which are kept.
_PATTERNS: Final = tuple(
    re.compile(pattern)
    for pattern in (
        r"(?i)((?<![\w-])(?:proxy-)?authorization\s?[:=]\s?)(?:[^\r\n\"'\\]|\\(?![\"']))+",
        r"(?i)((?<![\w-])(?:set-)?cookie\s?:\s?)(?!0x|\d)[\w.-]++=(?:[^\r\n\"'\\]|\\(?![\"']))+",
        # scheme://user:password@host; digits and a slash after the colon are a port
        r"""(://[^\s/:"'<>\[\]]*+:)(?!//|\d{1,5}(?:[/?#"'<>)\]}\s]|$))(?:(?!://)[^\s<>])*(@)""",
        r"""(://)(?=[^\s/:@"']*\d)[^\s/:@"']{16,}+(@)""",
        r"""(\bjdbc:oracle:\w+:[^/\s"']{1,200}/)[^\s@"']++(@)""",
        _SCHEMELESS,
        _ELEMENT,
        r"""(?i)([?&](?:sig|signature|key|auth|code|session|sid|pw)=)[^\s&"'<>#]{4,}+""",
        r"""(\b(?:add_user|change_password)\s+\S+\s+)\S++""",
        r"""(?i)(\blogin\s+\S+\s+password\s+)\S++""",
        _SPACED_LINE,
        # ipsec.secrets
        r"""(:\s+(?:PSK|EAP|XAUTH)\s+)"[^"]*+"?""",
        r"""(\becho\s+["']?[\w.-]++:)[^\s"'|]++(["']?\s*\|\s*(?:sudo\s+)?chpasswd)""",
    )
)
# A command line up to where the next command begins.
_COMMAND = re.compile(
    r"(?<![\w.-])(?:" + "|".join(map(re.escape, _FLAGS_OF)) + r")(?=\s)[^|;&\n]*+"
)
_BEARER = re.compile(
    r"(?i)(\bbearer[\s:=]+(?:token\s+)?)(?!auth|token|certif|plugin|\[)[^\s\"',;\\]{6,}"
)
# What is a secret wherever it stands: hashes of passwords and well-known formats of tokens.
_SHAPES = re.compile(
    r"\$(?:1|2[abxy]?|5|6|7|y|gy|apr1|argon2\w*|scrypt|pbkdf2[\w-]*)\$[^\s:\"']++"
    r"|\{(?:S?SHA\d*|S?MD5|CRYPT|PBKDF2[\w-]*)\}[^\s\"']++|SCRAM-SHA-\d+\$\d[^\s\"']++"
    r"|(?<![\w-])eyJ[\w-]{5,}+\.[\w-]++\.?[\w-]*+"
    # a PEM key in base64 once more, but no certificate and no public key
    r"|LS0tLS1CRUdJTiB(?!DRVJU|QVUJM)[\w+/=-]{8,}+"
    r"|(?<![A-Za-z0-9])(?:gh[pousr]_|github_pat_|gl[a-z]{2,5}-|xox[abeoprs]-|xapp-|npm_|hf_|pypi-"
    r"|[spr]k_(?:live|test)_|whsec_|dop_v1_|hv[sbr]\.|shp(?:at|ca|pa|ss)_|dckr_pat_|tskey-"
    r"|sk-(?=[\w-]*\d)|SG\.)[\w.-]{12,}+"
    r"|(?<![A-Za-z0-9])(?:AKIA|ASIA)[A-Z0-9]{12,}+|(?<![\w-])AIza[\w-]{30,}+"
    r"|(?<![\w-])ya29\.[\w-]{10,}+|AGE-SECRET-KEY-1\w++|(?<![\w:])\d{8,10}:AA[\w-]{30,}+"
    r"|(?<=hooks\.slack\.com/services/)[\w/]++"
    r"|(?<=/api/webhooks/)\d+/[\w-]++"
)
# No shape is shorter, and nothing else is without any mark.
_SHORT: Final = 16
# Most strings hold none of these marks, and then none of the patterns above can match.
_SUSPICIOUS = re.compile(
    r"[=:$}]|\s-|^-|</|_user\s|(?:word|WORD|pass|auth|pw|psk|passphrase|community|key)\s"
    r"|[Bb]earer|BEARER|-BEGIN|eyJ|gh[pousr]_|pat_|gl[a-z]{2,5}-|xox|xapp|npm_|hf_|pypi-|k_live"
    r"|k_test|whsec_|dop_|hv[sbr]\.|shp|tskey|sk-|SG\.|LS0tLS1|AKIA|ASIA|AIza|ya29|AGE-|SCRAM"
    r"|hooks\.|webhooks|wifi-sec|wireless-sec"
)


def hide_in_text(text: str) -> str:
    """Replace every part of a string that looks like a secret."""
    if (len(text) < _SHORT and text.isalnum()) or not _SUSPICIOUS.search(text):
        return text
    if "BEGIN" in text or "Private-Lines" in text:
        text = _PEM.sub(REDACTED, text)
    for pattern in _PATTERNS:
        text = pattern.sub(_keep_groups, text)
    text = _hide_named(text)
    text = _BEARER.sub(_keep_groups, text)
    text = _COMMAND.sub(_hide_arguments, text)
    return _SHAPES.sub(REDACTED, text)


def is_secret_value(name: str, value: str) -> bool:
    """Tell whether the value under a secret name is worth hiding."""
    if not value or value == REDACTED or _HARMLESS.fullmatch(value):
        return False
    if value.isdigit() and is_plural(name):
        return False  # tokens: 512
    word = name.lower().rpartition(".")[2].lstrip("-")
    return not (word in _HARMLESS_UNDER and _HARMLESS_UNDER[word].fullmatch(value))


def is_key_material(name: str, value: str) -> bool:
    """Tell a credential by name and looks together: {"auth": "dXNlcjpwYXNz"}."""
    pattern = _MATERIAL.get(name)
    return pattern is not None and bool(pattern.fullmatch(value))


def flags_of(words: Iterable[str]) -> tuple[str, ...]:
    """Give the flags of all programs named, whose values are secrets."""
    programs = {word.rpartition("/")[2] for word in words} & _FLAGS_OF.keys()
    return tuple(sorted({flag for program in programs for flag in _FLAGS_OF[program]}))


def _hide_named(text: str) -> str:
    """Hide the values of secret names: key=x, key: x, "key": "x", --key x."""
    parts = []
    done = at = 0
    while match := _KEY.search(text, at):
        at = match.end()
        name = _name(text, match)
        if not is_secret_name(name):
            continue
        start, end = _value(text, match)
        if is_secret_value(name, text[start:end]):
            parts += [text[done:start], REDACTED]
            done = at = end
    return "".join([*parts, text[done:]])


def _name(text: str, match: re.Match[str]) -> str:
    name = match["key"] or match["flag"]
    if name.lower() in _SECOND and (
        before := _BEFORE.search(text[max(0, match.start() - 41) : match.start()])
    ):
        return before[0] + name
    return name


def _value(text: str, match: re.Match[str]) -> tuple[int, int]:
    """Find where the value of a name begins and ends."""
    start = match.end()
    if match["flag"] and text.startswith("-", start):
        return start, start
    if quote := _QUOTE.match(text, start):
        start, mark = quote.end(), quote[0]
        if mark in _INSIDE:
            return start, _end(_INSIDE[mark], text, start)
        end = text.find(mark, start)
        return start, len(text) if end < 0 else end
    opening = text[match.start() - 1 : match.start()] if match.start() else ""
    if opening in _INSIDE and opening not in match[0]:
        return start, _end(_INSIDE[opening], text, start)  # "KEY=several words"
    return start, _end(_LINE if _takes_line(text, match) else _WORD, text, start)


def _takes_line(text: str, match: re.Match[str]) -> bool:
    """Tell `key: several words` and a line `key=several words` from `KEY=word command`."""
    first = match.start() == 0 or text[match.start() - 1] == "\n"
    return bool(match["key"]) and bool(match["gap"] or (first and match["key"].islower()))


def _end(pattern: re.Pattern[str], text: str, start: int) -> int:
    found = pattern.match(text, start)
    return found.end() if found else start


def _hide_arguments(match: re.Match[str]) -> str:
    """Hide the values of the flags of one command line."""
    return _values_of(flags_of(match[0].split())).sub(rf"\1{REDACTED}", match[0])


@lru_cache(maxsize=64)
def _values_of(flags: tuple[str, ...]) -> re.Pattern[str]:
    """Match a flag (kept) and its value."""
    named = "|".join(
        re.escape(flag) + (r"\s*+" if len(flag) == 2 else r"[\s=]*+") for flag in flags
    )
    return re.compile(rf"""((?<=\s)(?:{named}))(?!-)(?:"[^"]*+"?|'[^']*+'?|[^\s"']++)""")


def _keep_groups(match: re.Match[str]) -> str:
    groups = match.groups(default="")
    return groups[0] + REDACTED + (groups[-1] if len(groups) > 1 else "")
