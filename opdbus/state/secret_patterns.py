"""Patterns of secrets inside a string, and of values that look like secrets and are not."""

import re
from typing import Final

# Values under a secret name that are not secret: a policy, a file, a public key, a version.
HARMLESS = re.compile(
    r"(?i:yes|no|true|false|on|off|none|null|nil|enabled|disabled|required|optional|prompt|ask"
    r"|prohibit-password|without-password)"
    r"|(?:file:(?://)?)?/(?:etc|var|usr|run|opt|home|root|srv|mnt|media|tmp|proc|sys|dev|boot|nix"
    r"|lib|lib64|bin|sbin|snap|data|config|secrets|certs)(?:/[\w.@%+~-]+)*/?"
    r"|[\w./@~-]+\.(?:key|pem|crt|cer|p12|pfx|jks|gpg|asc|conf|ini|json|ya?ml|env|service|socket)"
    r"|(?:ssh|ecdsa)-[\w@.-]+ AAAA.*|v\d+(?:\.\d+){1,3}|\d+(?:\.\d+){2,3}|\*{3,}"
)
# ... and values that are not secret under one name only: a pass of fsck, a flow's label, the
# sources of a name service, a working directory.
HARMLESS_UNDER: Final = {
    "pass": re.compile(r"\d"),
    "cookie": re.compile(r"\d{1,20}|0x[0-9a-fA-F]{1,16}"),
    "passwd": re.compile(r"(?:files|compat|systemd|sss|ldap|nis|winbind|db|altfiles)\b.*"),
    "pwd": re.compile(r"/.*"),
    "oldpwd": re.compile(r"/.*"),
}
# Values that are secret under a name that is mostly harmless.
_BASIC_AUTH = re.compile(r"(?=.*[A-Z])(?=.*[a-z])(?:[A-Za-z0-9+/]{4}){3,}(?:[A-Za-z0-9+/]{2,3}=+)?")
_RANDOM = re.compile(r"(?!AAAA)(?=.*[A-Z])(?=.*[a-z])(?=.*\d)[A-Za-z0-9+/_-]{32,}={0,2}")
KEY_MATERIAL: Final = {"auth": _BASIC_AUTH, "_auth": _BASIC_AUTH, "key": _RANDOM, "Key": _RANDOM}
# Flags of programs whose values are secret, although the names of the flags do not say so.
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
SECRET_FLAGS: Final = {program: flags for many, flags in _FLAGS.items() for program in many.split()}
# Python before 3.11.5 fails on possessive repeats of groups (gh-106052): there are none below.
# An unquoted value ends at a space, a closing quote, or the next key of a;b=c.
_BARE = (
    r"""(?:(?![;&,]\s?[A-Za-z][\w.-]{0,40}=)[^\s"'])"""
    r"""(?:(?![;&,]\s?[A-Za-z][\w.-]{0,40}=)[^\s"']|["'](?=[^\s"',;:)\]}\\]))*"""
)
NAMED_VALUE = re.compile(
    r"""(?<![\w.-])(?:(?P<key>[\w.-]++)\\*+["']?\]?\s?[^\S\n]*+(?::=|=>|=|:(?!:|//))"""
    r"""|(?P<flag>--?[A-Za-z][\w.-]*+)(?=\s))"""
    # the value may begin on the next line, if that is indented and has no key of its own
    r"""(?P<gap>[^\S\n]*+(?:(?:[|>][+-]?|\\)?\n[^\S\n]++(?!["']?[\w.-]++["']?\s?[=:]))?)"""
)
QUOTE = re.compile(r"""\\*+["']""")
INSIDE_QUOTES: Final = {q: re.compile(rf"[^{q}\\]*+(?:\\.[^{q}\\]*+)*", re.DOTALL) for q in "\"'"}
UNQUOTED = re.compile(_BARE)
UNQUOTED_LINE = re.compile(rf"{_BARE}(?:[^\S\n]++(?![\w.-]++\s?[=:])(?!--?\w){_BARE})*")
# Words that make a name secret only together with the word before, as in `API key: x`.
SECOND_WORDS: Final = frozenset({"key", "phrase", "code", "pin"})
WORD_BEFORE = re.compile(r"[A-Za-z-]{1,40}[ ](?=\Z)")

PEM = re.compile(
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
# lines of configuration files with only a space between name and value
_SPACED_LINE = (
    r"(?m)(^[^\S\n]{0,8}(?:requirepass|masterauth|bindpw|rootpw|psk|wpa_psk|wpa_passphrase"
    r"|rocommunity|rwcommunity|api[_-]?key)[^\S\n]++)\S++"
)
# <password>x</password>
_ELEMENT = (
    r"(<(?:[\w:.-]*(?i:password|passwd|secret|token|apikey|psk))\b[^<>]*+>)"
    r"[^<]++(</)"
)
# Secrets that the text around them shows; the groups of a match are kept. Each with what is in the
# lower case of every text that it matches; no letter of that has a third case, as `k` and `s` have.
IN_CONTEXT: Final = tuple(
    (mark, re.compile(pattern))
    for mark, pattern in (
        (
            "author",
            r"(?i)((?<![\w-])(?:proxy-)?authorization\s?[:=]\s?)(?:[^\r\n\"'\\]|\\(?![\"']))+",
        ),
        (
            "coo",
            r"(?i)((?<![\w-])(?:set-)?cookie\s?:\s?)(?!0x|\d)[\w.-]++=(?:[^\r\n\"'\\]|\\(?![\"']))+",
        ),
        # scheme://user:password@host; digits and a slash after the colon are a port
        (
            "://",
            r"""(://[^\s/:"'<>\[\]]*+:)(?!//|\d{1,5}(?:[/?#"'<>)\]}\s]|$))(?:(?!://)[^\s<>])*(@)""",
        ),
        ("://", r"""(://)(?=[^\s/:@"']*\d)[^\s/:@"']{16,}+(@)"""),
        ("jdbc:oracle", r"""(\bjdbc:oracle:\w+:[^/\s"']{1,200}/)[^\s@"']++(@)"""),
        ("@", _SCHEMELESS),
        ("</", _ELEMENT),
        ("=", r"""(?i)([?&](?:sig|signature|key|auth|code|session|sid|pw)=)[^\s&"'<>#]{4,}+"""),
        ("_", r"""(\b(?:add_user|change_password)\s+\S+\s+)\S++"""),
        ("log", r"""(?i)(\blogin\s+\S+\s+password\s+)\S++"""),
        ("", _SPACED_LINE),
        # ipsec.secrets
        ('"', r"""(:\s+(?:PSK|EAP|XAUTH)\s+)"[^"]*+"?"""),
        ("chpasswd", r"""(\becho\s+["']?[\w.-]++:)[^\s"'|]++(["']?\s*\|\s*(?:sudo\s+)?chpasswd)"""),
    )
)
# A command line, up to the next command.
COMMAND = re.compile(
    r"(?<![\w.-])(?:" + "|".join(map(re.escape, SECRET_FLAGS)) + r")(?=\s)[^|;&\n]*+"
)
# What may be the name of a program in COMMAND.
PROGRAM = re.compile(r"(?<![\w.-])[\w.-]++(?=\s)")
BEARER = re.compile(
    r"(?i)(\bbearer[\s:=]+(?:token\s+)?)(?!auth|token|certif|plugin|\[)[^\s\"',;\\]{6,}"
)
# Secrets anywhere in a text: hashes of passwords, and well-known formats of tokens.
SHAPES = re.compile(
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
# Each text that SHAPES matches has one of these, whatever else it has.
IN_SHAPES: Final = tuple(
    "$ { :AA SCRAM eyJ LS0tLS1 gh pat_ gl xox xapp npm_ hf_ pypi- k_live k_test whsec_ dop_ hv shp"
    " tskey sk- SG. AKIA ASIA AIza ya29 AGE- hooks. webhooks".split()
)
# A shorter text of letters and digits alone holds no secret.
MIN_LENGTH: Final = 16
# None of the patterns above matches a text without one of these marks, as most texts are.
SUSPICIOUS = re.compile(
    r"[=:$}]|\s-|^-|</|_user\s|(?:word|WORD|pass|auth|pw|psk|passphrase|community|key)\s"
    r"|[Bb]earer|BEARER|-BEGIN|eyJ|gh[pousr]_|pat_|gl[a-z]{2,5}-|xox|xapp|npm_|hf_|pypi-|k_live"
    r"|k_test|whsec_|dop_|hv[sbr]\.|shp|tskey|sk-|SG\.|LS0tLS1|AKIA|ASIA|AIza|ya29|AGE-|SCRAM"
    r"|hooks\.|webhooks|wifi-sec|wireless-sec"
)
# Each text that SUSPICIOUS matches has one of these, or DASHED matches it; to look for them takes
# half of the time. It matches all that have one of the first few.
ALONE_SUSPICIOUS: Final = ("=", ":", "$", "}", "</")
IN_SUSPICIOUS: Final = (
    *ALONE_SUSPICIOUS,
    *"_user word WORD pass auth pw psk community key earer EARER -BEGIN".split(),
    *("wifi-sec", "wireless-sec"),
    *(mark for mark in IN_SHAPES if mark not in {"$", "{", ":AA"}),
)
# And what text has that may be JSON.
IN_SUSPECTS: Final = (*IN_SUSPICIOUS, "{", "[")
# A dash is looked for first, and only then what is before it.
DASHED = re.compile(r"-(?<!\S-)")
