"""Patterns of secrets inside a string, and of values that resemble secrets but are not."""

import re
from collections.abc import Iterable
from typing import Final, TypeAlias

from opdbus.state import secret_commands as commands
from opdbus.state.long_text import LazyPattern, lazy

# Values under a secret name that are not secret: a policy, a file, a public key, a version.
# Anchored, since an unanchored pattern would be tried at every position.
HARMLESS = re.compile(
    r"\A(?:(?i:yes|no|true|false|on|off|none|null|nil|enabled|disabled|required|optional|prompt|ask"
    r"|prohibit-password|without-password|publickey|keyboard-interactive|hostbased|password|amd64|arm64|i386|x86_64|noarch)"
    r"|(?:file:(?://)?)?/(?:etc|var|usr|run|opt|home|root|srv|mnt|media|tmp|proc|sys|dev|boot|nix"
    r"|lib|lib64|bin|sbin|snap|data|config|secrets|certs)(?:/[\w.@%+~-]+)*/?"
    r"|[\w./@~-]+\.(?:key|pem|crt|cer|p12|pfx|jks|gpg|asc|conf|ini|json|ya?ml|env|service|socket)"
    r"|(?:ssh|ecdsa)-[\w@.-]+ AAAA.*|v\d+(?:\.\d+){0,3}|v\d(?:alpha|beta)\d"
    r"|\d+(?:\.\d+){2,3}|\*{3,}|[!*]{1,2}|[\[{(][\]})]?"
    # references to values elsewhere
    r"|\$[A-Z][A-Z\d_]{2,}|\$\{\w+\}|\{\{ ?[\w.]*(?: ?\}\})?|%\(\w+\)s|%[a-z]|<[a-z][\w -]*>"
    r"|!(?:vault|secret|env|Ref|Sub)|\{\w+:(?: \w+\})?|\{(?:secret)?[Nn]ame: [\w.-]+[\]}]*"
    r"|=\s?v?\d+(?:\.[\w*+!-]+){1,4}"
    r"|(?:hash|lmdb|btree|cdb|texthash|pcre|regexp|proxy|env|exec|stdin|fd):[\w/.-]*|['\"]{2})\Z"
)
# Values that are harmless under one name only: the pass number of fsck, the cookie of a flow, the
# sources of a name service, a working directory.
HARMLESS_UNDER: Final = {
    "pass": re.compile(r"\d"),
    "cookie": re.compile(r"\d{1,20}|0x[0-9a-fA-F]{1,16}"),
    "passwd": re.compile(r"(?:files|compat|systemd|sss|ldap|nis|winbind|db|altfiles|password)\b.*"),
    "pwd": re.compile(r"/.*"),
    "oldpwd": re.compile(r"/.*"),
    "signingkey": re.compile(r"(?:0x)?[0-9A-F]{8,40}|[~/].*|key::.*"),
}
# Session numbers of logind and the kernel, which grant no access.
SESSION_NAME: Final = re.compile(r"(?i)sess(?:ion)?[\s_.-]?id\Z")
SESSION_NUMBER: Final = re.compile(r"[A-Za-z]{0,8}-?\d{0,20}(?:\.scope)?|[a-z]+(?:[_-][a-z]+)*")
# A count, or a number with what it counts.
NUMBERED: Final = re.compile(r"\d+(?::\s.*)?")
# Values that are secret under a name that is mostly harmless.
_BASIC_AUTH = re.compile(
    r"\A(?=.*[A-Z])(?=.*[a-z])(?:[A-Za-z0-9+/]{4}){3,}(?:[A-Za-z0-9+/]{2,3}=+)?"
)
_RANDOM = re.compile(r"\A(?!AAAA)(?=.*[A-Z])(?=.*[a-z])(?=.*\d)[A-Za-z0-9+/_-]{32,}={0,2}")
_PIN = re.compile(r"\A(?!(?:GPIO|gpio|P[A-K]|IO|BCM)\d)(?=[A-Za-z]*\d)[A-Za-z\d]{4,16}\Z")
KEY_MATERIAL: Final = {
    **dict.fromkeys(("pin", "Pin", "PIN"), _PIN),
    "auth": _BASIC_AUTH,
    "_auth": _BASIC_AUTH,
    "key": _RANDOM,
    "Key": _RANDOM,
}
# Python before 3.11.5 fails on possessive repeats of groups that can backtrack (gh-106052), such as
# those with alternatives: none are used in this package.
# An unquoted value ends at a space, a closing quote, or the next key of a;b=c.
_BARE = (
    r"""(?:(?![;&,]\s?[A-Za-z][\w.-]{0,40}=)[^\s"'])"""
    r"""(?:(?![;&,]\s?[A-Za-z][\w.-]{0,40}=)[^\s"']|["'](?=[^\s"',;:)\]}\\]))*"""
)


def _name_and_value(letters: str) -> re.Pattern[str]:
    """Return a pattern for a name of some letters with the sign before its value, or a flag."""
    return re.compile(
        rf"""(?<![{letters}-])(?:(?P<key>[{letters}-]++)\\*+["']?\]?\s?[^\S\n]*+(?::=|=>|==(?=\s?["'])|=|::(?=\s)|:(?!:|//))"""
        rf"""|(?P<flag>(?<!\S)--?\w[{letters}-]*+)(?=\s))"""
        # the value may begin on the next line, if that is indented and has no key of its own
        r"""(?P<gap>[^\S\n]*+(?:(?:[|>][+-]?|\\)?\n[^\S\n]++(?!["']?[\w.-]++["']?\s?[=:]))?)"""
    )


NAMED_VALUE: Final = _name_and_value(r"\w.\u0300-\u036f\u0900-\u0d7f\u0e31-\u0eff")
# In ASCII this takes half the time.
NAMED_VALUE_ASCII: Final = _name_and_value("A-Za-z0-9_.")
QUOTE = re.compile(r"""\\*+["']""")
INSIDE_QUOTES: Final = {q: re.compile(rf"[^{q}\\]*+(?:\\.[^{q}\\]*+)*", re.DOTALL) for q in "\"'"}
UNQUOTED = re.compile(_BARE)
UNQUOTED_LINE = re.compile(rf"{_BARE}(?:[^\S\n]++(?![\w.-]++\s?[=:])(?!--?\w){_BARE})*")
# Words that make a name secret only together with the word before, as in `API key: x`.
SECOND_WORDS: Final = frozenset(
    "key phrase code pin community passe ordine sandi khau secreta secrete privada privee segreta"
    " privata schlussel schluessel".split()
)
WORD_BEFORE = re.compile(r"(?<![\w'-])(?:[\w'-]{1,40}[ ]){0,3}(?:[\w-]{1,20}')?(?=\Z)")

_PEM = (
    r"(?s)-{4,5} ?BEGIN (?:[A-Z0-9 ]*PRIVATE KEY(?: BLOCK)?|OpenVPN Static key V1) ?-{4,5}"
    r"(?:.*?-{4,5} ?END (?:[A-Z0-9 ]*PRIVATE KEY(?: BLOCK)?|OpenVPN Static key V1) ?-{4,5}|.*)"
)
# user:password@tcp(host) and user:password@host:port
_SCHEMELESS = (
    r"""((?<![\w:/@.%+-])(?!(?i:sips?|mailto|ssh|git|xmpp|https?):)(?:[\w.-]{1,40}/)?[\w.%+-]++:)(?!//)"""
    r"""(?:[^\s:@"'/]++(@)(?=(?:tcp|udp|unix)\(|(?!sha\d)[\w.-]++:\d{2,5}(?!\w)|localhost\b"""
    r"""|(?:\d{1,3}\.){3}\d{1,3}(?![\w.])))"""
)
# lines of configuration files with only a space between name and value
_SPACED_LINE = (
    r"(?m)((?:(?<=[\s\"'=])(?:requirepass|masterauth|bindpw|rootpw|rocommunity|rwcommunity)"
    r"|^[^\S\n]{0,8}(?:requirepass|masterauth|bindpw|rootpw|psk|wpa_psk"
    r"|rocommunity|rwcommunity|api[_-]?key))[^\S\n]++(?:--\w++[^\S\n]++)?)(?!--|\"\"|'')\S++"
)
# a command that prints a password: --password-command "echo x"
_FROM_COMMAND = (
    r"""((?i:pass(?:word|phrase)?[_-]?(?:command|cmd|eval)|askpass|extpass|exec(?=:))["'\\]{0,9}(?:\s?[=:,]|\s)\s?["'\\]{0,9}"""
    r"""(?:/(?:usr/)?bin/)?(?:echo|printf)\s+(?:-\w+\s+|["'\\]{0,9}%s\S{0,9}\s+){0,3}["'\\]{0,9})"""
    r"""(?![$`])[^\s"'\\|;&]++"""
)
# CHAP secrets: client, server, secret and address; the server or the address is a star
_CHAP = (
    r"""(?m)((?:^|(?<=[=']))[^\S\n]{0,8}(?:"[^"\n]{1,99}"|[\w.@\\*-]{1,99})[^\S\n]++"""
    r"""(?:\*[^\S\n]++|[\w.-]{1,99}[^\S\n]++(?=\S{4,}+[^\S\n]++"?\*"?[^\S\n]*$)))"""
    r"""(?:"[^"\n]++"|(?![*])\S{4,}+)(?=[^\S\n]++(?:"?\*"?|\d[\d.:/]++)'?[^\S\n]*$)"""
)


Rows: TypeAlias = tuple[tuple[tuple[str, ...], LazyPattern], ...]


def _rows(*rows: tuple[str, str]) -> Rows:
    """Return patterns with their marks (separated by bars); every match contains a mark.

    Marks are compared with text in lower case that has one space between words and one before the
    first word.
    """
    return tuple((tuple(marks.split("|")), lazy(pattern)) for marks, pattern in rows)


# Secrets recognised by the text around them; groups of a match are kept. Each match of these
# contains one of SIGNS.
BESIDE_SIGNS: Final = _rows(
    ("author", r"(?i)((?<![\w-])(?:proxy-)?authorization\s?[:=]\s?)(?:[^\r\n\"'\\]|\\(?![\"']))+"),
    (
        "coo",
        r"(?i)((?<![\w-])(?:set-)?cookie\s?:\s?)(?!0x|\d)[\w.-]++=(?:[^\r\n\"'\\]|\\(?![\"']))+",
    ),
    # scheme://user:password@host; digits and a slash after the colon are a port
    (
        "://",
        r"""(://[^\s/:"'<>\[\]]*+:)(?!//|\d{1,5}(?:[/?#"'<>)\]}\s]|$))(?:(?!://)[^\s<>])*(@)""",
    ),
    (
        "://",
        r"""(https?://(?=[^\s/:@"']*[A-Za-z])|://(?=[^\s/:@"']{16}))(?=[^\s/:@"']*\d)[^\s/:@"']{6,}+(@)""",
    ),
    ("jdbc:oracle", r"""(\bjdbc:oracle:\w+:[^/\s"']{1,200}/)(?:(?!jdbc:)[^\s@"'])+(@)"""),
    # a line of davfs2's secrets: address, user, password
    (
        "://",
        (
            r"""(?m)((?:^|["'=])[^\S\n]{0,8}https?://[^\s"']{1,200}[^\S\n]{1,9}[\w.@-]{1,64}"""
            r"""[^\S\n]{1,9})(?=[\w!$%^&*+?-]{0,40}\d)(?=[^\sa-z"'/]{0,40}[a-z])[\w!$%^&*+?-]{8,}+(?=["'\s]|$)"""
        ),
    ),
    ("@", _SCHEMELESS),
    (
        "?|&",
        (
            r"""(?i)([?&](?:sig|signature|sid|pw|key|auth|code|session)="""
            r"""(?!(?:name|none|null|true|false|default|value|latin)(?:[\s&"'<>#]|$)))[^\s&"'<>#]{4,}+"""
        ),
    ),
    # ipsec.secrets
    ("psk", r"""(:\s+PSK\s+)(?:"[^"]*+"?|0[xs]\S++)"""),
    ("eap", r"""(:\s+EAP\s+)"[^"]*+"?"""),
    ("rsa|ecdsa|pkcs8|p12", r"""(:\s+(?:RSA|ECDSA|PKCS8|P12|BLISS)\s+\S+\s+)"[^"]++"?"""),
    ("xauth", r"""(:\s+XAUTH\s+)"[^"]*+"?"""),
    (
        "pin",
        (
            r"""((?<![\w-])(?<!gpio )(?<!GPIO )(?:[Pp]in|PIN)["'\\]{0,9}\s?[:=]\s?"""
            r"""["'\\]{0,9})"""
            r"""(?!(?:GPIO|gpio|P[A-K]|IO|BCM)\d)(?=[A-Za-z]{0,9}\d)[A-Za-z\d]{4,16}+(?![\w./:%-])"""
        ),
    ),
    (
        "list:",
        (
            r"""(\bchpasswd:\s*+\{?\s?list:\s?\|?-?\s*+["']?(?:[\w.-]++:\[\S++\s+){0,20}[\w.-]++:)"""
            r"""(?!\[red)[^\s"'}]++"""
        ),
    ),
    ("]:", r"""((?:^|(?<=[\s"'=]))\[[\w.:-]++\]:\d++[^\S\n]++[\w.@+-]++:)\S++"""),
    ("16:", r"""(?<!\w)(16:)[0-9A-F]{58}(?!\w)"""),
    ("private-lines", r"(?s)(?<=Private-Lines: ).*"),
    (",p=", r"""(\bu=[^,\s]{1,99},(?:\w=[^,\s]{0,99},){0,9}p=)[^,\s]+"""),
    ("neo4j_auth", r"""(NEO4J_AUTH=\w+/)\S+"""),
    ("ntlm|hash", r"""(?i)((?<![a-z])nt(?:lm)?(?:[ _-]?hash)?\s?[:=]\s?)[0-9a-f]{32}\b"""),
    ("sftp:", r"""(\bsftp:[\w.-]{1,99}:)[^\s@]{1,256}(@)"""),
    ("from-literal", r"""(--from-literal[= ][\w.-]+=)\S+"""),
    ("routing_key", r"""(routing_key["']?\s?[:=]\s?["']?)[0-9a-f]{32}\b"""),
    ("sonar.login", r"""(sonar\.login=)[^\s"']{20,}"""),
    ("$user", r"""(\$USER\d+\$=)(?!/)\S+"""),
    ("client_send", r"""(client_send\s*=\s*:\s*[^\s:]+\s*:\s*)[^\s:]+"""),
    ("pin-value", r"""(pin-value=)[^\s&;"']+"""),
    ("s2_|s0_", r"""(S[02]_\w{1,64}:\s?)[0-9A-Fa-f]{32}"""),
    ("iscsi:", r"""(root=iscsi:[^\s:@]{1,128}+:)[^\s@]{1,256}+(@)"""),
    ('"p:', r"""("P=?:)[^"\n]++(")"""),
    ("_servers", r"""((?:mysql|pgsql)_servers\s*=\s*(?:[^/\s]+/){3})[^\s:]++"""),
    ("response=", r"""(\bresponse="?)(?=[A-Za-z]*\d)\w{8,}+"""),
    (
        "key",
        (
            r"""(?i)((?:^|(?<=[\s{,"'\[(]))(?!\S{0,24}(?:pub|cache|finger|sort|group|rout|gpg|apt|host"""
            r"""|partition|primary|foreign|hot|map|index|object|row|column|board|reg|hash))"""
            r"""[\w.-]{0,40}?key["']?\s?(?:=>|[:=])\s?["']?)(?:(?:[0-9a-f]{32}){1,4}(?![\w:-])"""
            r"""|(?:(?<=[_.-]key["'=:\s])|(?<=[_.-]key[=:]["'\s]))(?=[^\W\d]{0,64}\d)(?=\d{0,64}[a-z])[\w+/!#$%^&*-]{8,256}={0,2}(?![\w.:/-]))"""
        ),
    ),
    ("register", r"""(\bregister\s+=(?:>\s?\w|\s?\d)[\w.-]*+:)[^\s@]++(@)"""),
)
# The same for matches without one of SIGNS: only their marks are searched for.
IN_CONTEXT: Final = _rows(
    ("begin ", _PEM),
    ("_user |_password ", r"""(\b(?:add_user|change_password)\s+\S+\s+)\S++"""),
    (
        "pin |code ",
        (
            r"(?i)((?<![\w-])(?:(?:sim|user|so|unlock|admin|card|door|alarm|voicemail|pairing|screen"
            r"|the|my|your)[ \t_-]{1,2}pin|pin[ \t_-]?code|pin[ \t]is|(?:unlock|door|alarm|access"
            r"|entry|recovery|backup|gate|safe|voicemail|pairing)[ \t]code)(?:[ \t]++(?:is|code))?"
            r"[ \t]++[\"']?)\d{4,12}(?![\w.:/%-])"
        ),
    ),
    ("login ", r"""(?i)(\blogin\s+\S+\s+password\s+)\S++"""),
    ("pass |masterauth |pw |community |psk |passphrase |key ", _SPACED_LINE),
    ("\"|'", r"""(?i)(password(?:\s+|\s?\(\s?|\s?=\s?)N?["'\\]{1,9})[^"'\\]*+"""),
    (
        "\"|'",
        (
            r"""(?i)((?:(?:connect|pdo|mysqli)\((?:[^,()\n]{0,199},){2}|credentials\((?:[^,()\n]{0,199},){3}"""
            r"""|passwd\([^,()\n]{0,99},)\s?["'])[^"']*+"""
        ),
    ),
    ("\"|'", r"""(\bauth=?\(\s*["'][^"']*["'],\s*["'])[^"']*+"""),
    (
        "basic |bearer |token |digest ",
        r"""(?i)(\bauthorization[ \t]+["'\\]{0,3}(?:basic|bearer|token|digest)[ \t]+)[^\s"']+""",
    ),
    # files of pppd
    ("*", _CHAP),
    ("echo |printf ", _FROM_COMMAND),
    # input that expect(1) sends, followed by Enter
    ("send ", r"""(assword[^\n]{0,80}?\bsend\s+(?:--\s+)?\\*["'])[^"'\\]++"""),
    (
        "send ",
        (
            r"""(\bsend\s+(?:--\s+)?\\*["'])(?=[^"'\\\s]{0,60}\d)(?=[^"'\\\s]{0,60}[A-Za-z])"""
            r"""[^"'\\\s]{5,}+(?=\\+[rn]|\r)"""
        ),
    ),
    (">", r"""(?i)(user\s+\S+\s+(?:[^\s>]+\s+){1,9}[\"']?>)[^\s"']++"""),
    (
        "sqlplus |sqlldr |expdp |impdp |rman |exp |imp |connect |conn ",
        r"""(\b(?:sqlplus|sqlldr|expdp|impdp|rman|exp|imp|(?i:conn(?:ect)?))\s+(?:-\S++\s++){0,9}+[\w.]+/)[^\s@"']++""",
    ),
)
# Lines of fields separated by a number of colons: .pgpass, Windows hashes, Apache digests, DES.
IN_FIELDS: Final = (
    (
        4,
        lazy(
            r"""((?<![\w.*:@/-])[\w.*-]++:(?:\d{2,5}|\*):(?:\*|(?=\w*?[A-Za-z])[\w.-]++)"""
            r""":(?:\*|(?=\w*?[A-Za-z])[\w.-]++):)(?=[^\s"':]*[A-Za-z])[^\s"':]++(?=["'\s]|$)"""
        ),
    ),
    (5, lazy(r"(\w:\d+:)[0-9A-Fa-fX]{32}:[0-9A-Fa-f]{32}(:)")),
    (5, lazy(r"(\w::[\w.]*:[0-9a-fA-F]{16}:)[0-9a-fA-F]{32}:[0-9a-fA-F]++")),
    (2, lazy(r"(?m)(^[\w.-]++:[^:@\n/]{1,60}:)(?<!\bmd5:)[0-9a-f]{32}$")),
)
# A password or a hash behind the name of a user or a host: bob:x!1, client1:<hexadecimal digits>.
FIELD: Final = re.compile(r":([^\s:/\"'()]{4,160}+)(?=[\s:\"']|\Z)")
BEFORE_FIELD: Final = re.compile(
    r"(?:\A|(?<=[\s\"'=]))(?P<host>(?:[\w-]+\.[\w.-]+(?::|[ \t]+))?)(?P<user>\w[\w.@+-]{0,40}+)\Z"
)
OF_FIELDS: Final = re.compile(
    r"(?P<hash>(?:[0-9a-fA-F]{2}){16,64}\Z|(?=.{0,12}\d)(?=.{0,12}[A-Z])(?=.{0,12}[a-z])[./\w]{13}\Z)"
    r"|(?=.{0,39}\d)(?=.{0,39}[A-Za-z])(?=.{0,39}[!#$%^&*?]).{6,40}\Z"
    r"|(?=(?:[A-Za-z]*\d){3})(?=(?:\d*[A-Za-z]){3})[A-Za-z\d]{16,}\Z"
)
# Names of access keys.
KEY_NAME: Final = re.compile(r"(?=[A-Z]*\d)[A-Z\d]{16,}")
# Names before digests and ids.
NO_FIELD: Final = re.compile(
    r"(?i:(?:pci|usb|hid|sdio|virtio)\Z|sha|md5|blake|crc|container|image|layer|service|network"
    r"|volume|task|node|pod|sandbox|docker|machine|commit|rev|uuid|guid|id|key|git|build|etag|serial)\w*"
)
# A short text of only these characters is a time or an address.
NUMBERS = re.compile(r"[0-9a-fA-F:.TZ/+ -]{1,40}")

# Secrets in command lines, each table with a rule of its own in `secret_text`.
PRINTED: Final = _rows(*commands.PRINTED)
REDIRECTED: Final = _rows(*commands.REDIRECTED)
FED: Final = _rows(*commands.FED)
CREDENTIALS: Final = _rows(*commands.CREDENTIALS)
AFTER_PERCENT: Final = _rows(*commands.PASSWORD_AFTER_PERCENT)
# Blanks before an argument, unless it is glued on.
_BLANKS: Final = r"[^\S\n]+"
_GAP: Final = dict.fromkeys(":=,", "")
ARGUMENTS: Final = _rows(
    *(
        (marks, rf"(?<![\w.-])({pattern}{_GAP.get(pattern[-1], _BLANKS)})({commands.ARGUMENT})")
        for marks, *patterns in commands.ARGUMENTS
        for pattern in patterns
    )
)
# A command line, up to the next command.
AFTER_USER: Final = _rows((" -", commands.USER_AND_PASSWORD))
AFTER_OPTION: Final = _rows(
    (" -p | -k | -w | -pw | -pass |/p:|/pass:", commands.LONE_PASSWORD),
)
COMMANDS: Final = _rows(
    (
        " -|nmcli |/p:",
        rf"(?<![\w.-])(?:{'|'.join(map(re.escape, commands.SECRET_FLAGS))})(?=\s)[^|;&\n]*+",
    ),
)
# A secret's name and the secret as two words; the second must look like a password.
_WHOM: Final = (
    r"(?:for|of|on|at|by|de|do|da|del|du|di|f\wr|pour|para|voor|til|dla|для)[ \t]++"
    r"(?:the[ \t]++)?(?:(?:user|host|backup(?=[ \t]++disk))[ \t]++)?[\"']?[\w.@-]++[\"']?:?"
)
TWO_WORDS = re.compile(
    # the lookahead at the first letter halves the time; that at fillers takes all or none of them
    r"(?=[pksrbtacwhlпPKSRBTACWHLП])(?i:((?:pass(?:word|wort|wd|phrase|code)?|kennwort|secret|psk"
    r"|(?<![a-z0-9])pw|rootpw|bindpw|pwd|token|community|auth_?key|preshared-key|password-value"
    r"|contrase\w{1,2}a|senha|passe|wachtwoord|heslo|has\wo|l\wsenord(?:et)?|adgangskoden?"
    r"|salasana|пароль|(?<=[a-z][ _-])(?:key|code))"
    rf"[\"']?\]?[ \t]++(?=(?P<filler>(?:(?:{_WHOM}|is|was|lautet|ist|to|root|es|est|je|jest|\wr|on"
    r"|[éè]|string|hash|encrypted|plain|now|changed|set|reset|password|--\w++|\d{1,2}|:"
    r")[ \t]++){0,4}))"
    r"(?P=filler)[\"']?)(?P<value>[^\s\"'|;&<>]{5,}+))"
)
# A word before `key` or `code` that makes it secret.
OF_KEYS = re.compile(
    r"(?i)(?:backup|recovery|api|access|private|licen[cs]e|activation|unlock|encryption|signing"
    r"|master|wi-?fi|luks|bitlocker|shared|deploy|service|rescue|root|admin|cookie"
    r"|session|boot\w{0,9})[ _-]\Z"
)
# The number of an OpenPGP key.
KEY_ID: Final = re.compile(r"0x[\dA-Fa-f]{8,16}\W?\Z")
# A word of letters and digits that no name has.
MIXED: Final = re.compile(
    r"(?![\dA-Fa-f]+\W?\Z)(?=[A-Za-z]*\d)(?=\d*[A-Za-z])[A-Za-z\d+/]{12,}={0,2}\W?\Z"
)
# Sentences that give a password away.
SAID: Final = _rows(
    (
        " / ",
        (
            r"(?i)((?:login|log in|credentials?|account|user(?:name)?)[ \t:]+(?:(?:with|as|is|for)"
            r"[ \t]+)?[\w.@-]+[ \t]+/[ \t]+)([^\s\"'|;&<>]{5,}+)"
        ),
    ),
    (
        " as the | as your | as pass| as token",
        (
            r"(?i)(\b(?:enter|use|type|try)[ \t]+[\"']?)([^\s\"'|;&<>]{5,}+)(?=[\"']?[ \t]+as"
            r"[ \t]+(?:the[ \t]+|your[ \t]+)?(?:\w+[ \t]+)?(?:passw?\w+|token|key|secret|pin)\b)"
        ),
    ),
    # a line of GRUB, and one of PgBouncer's userlist
    (
        "password ",
        (
            r"(?m)(^[ \t]*password[ \t]+"
            r"(?!(?:requi(?:red|site)|sufficient|optional|include|substack)\b)[\w.-]{1,32}[ \t]+)"
            r"(\S{5,}+)(?=[ \t]*$)"
        ),
    ),
    (
        '" "',
        (
            r"""(?m)(^"(?!\w{0,48}(?:id|name|model|serial|version|path|type|label)")"""
            r"""[\w.@-]{1,64}" ")([^"\n]{7,}+)(?="$)"""
        ),
    ),
    # set-user-password vm anna X, acl set-agent-token default X
    (
        "password |passwd |token |secret |pass |pw |passphrase ",
        (
            r"(?i)((?<![\w-])(?:set|change|reset|update|add|new|modify)[\w-]*[-_]"
            r"(?:password|passwd|token|secret|pass|pw|passphrase)[ \t]+(?:[\w.@-]+[ \t]+){0,3}"
            r"[\"']?)([^\s\"';|&]{5,}+)(?=[\"']?(?:[ \t]*(?:[;|&\n]|$)))"
        ),
    ),
)
SENTENCES: Final = _rows(
    # Exim's client passwords: server, user and password
    (
        "* :|*:",
        r"""((?<![^\s"'=])\*\s?:\s?[\w.@+-]{1,64}\s?:\s?)([^\s:"']{5,}+)(?=["'\s]|$)""",
    ),
    (
        "word |phrase |wort |secret |pin ",
        (
            r"(?i)((?:password|passphrase|passwort|kennwort|secret|pin)[ \t][\w'/@. -]{1,60}+:"
            r"(?<!failed:)(?<!denied:)(?<!error:)"
            r"[ \t]++[\"']?)([^\s\"'|;&<>]{5,}+)"
        ),
    ),
)
IN_TWO_WORDS: Final = tuple(
    "pass |word |wort |passwd |phrase |passcode |secret |psk |pw |pwd |token |community "
    "|authkey |auth_key |key |code |-value |contraseña |contrasena |contrasenya "
    "|senha |passe |wachtwoord |heslo |hasło |haslo |lösenord |lösenordet |adgangskode "
    "|adgangskoden |salasana |пароль |\"|'".split("|")
)
# Words that name a method, version, unit, time or other object rather than a password.
NO_PASSWORD = re.compile(
    r"(?i)\A(?:(?:sha|md|aes|rfc|ipv|utf-?|base|x|u|v|as|oauth|fido|krb|ntlmv?|tls|sasl|http|pbkdf)"
    r"-?[\d.]++\W*+|argon2\w*+|u2f|[\d.,:/%+-]++\W?[a-z]{0,8}[.,;:)]*+|\d[\d.-]*+\w{0,4}|-\S*+"
    r"|[./~]\S*+|(?:unix|fd|file|exec|env|hash):\S*+|[^\s:]++://\S*+|\d+:\d\S*+|\d[\d.]*[+~-]\S*+"
    r"|[^\s(\[{<=$]*+[(\[{<=$]\S*+)\Z"
)
# Suffixes of names of files and units.
NAME_ENDS: Final = tuple(
    ".service .socket .target .timer .path .conf .so .py .sh .txt .gz .deb .pem .key .xml".split()
)
# ("db_password", "x"), <add key="Password" value="x">
NAMED_PAIRS: Final = _rows(
    (
        "\"|'",
        r"""["']([\w.-]{2,60})\\*["'](?:\s?,\s?|\s[vV]alue\s?=\s?)\\*["']([^"'\\]++)(?!\\*["']\s?:)""",
    ),
    # <password>x</password>, <Password><Value>x</Value>
    (">", r"""(?:<|(?<=["']))([\w:.-]{1,80})(?:["']|\s[^<>]*+)?>([^<]++)(?=</)"""),
    # of Terraform
    ("variable ", r"""\bvariable\s+"([\w-]{2,60})"\s*\{[^{}]{0,200}?default\s*=\s*"([^"\n]++)"""),
    ("<value>", r"<([\w:.-]{1,80})>\s*<[vV]alue>([^<]++)"),
)
# Prefixes of tokens that are hidden whatever characters follow.
_PREFIXES: Final = (
    "ghp_ gho_ ghu_ ghs_ ghr_ github_pat_ glpat- gldt- glrt- glrtr- glcbt- glptt- glft- glimt-"
    " glagent- glsoat- gloas- glffct- glwt- xapp- sk_live_ pk_live_ rk_live_"
    " sk_test_ pk_test_ rk_test_ whsec_ dop_v1_ shpat_ shpca_ shppa_ shpss_ dckr_pat_ tskey-"
    " hvs. hvb. hvr."
).split()
# Secrets anywhere in a text: password hashes, and tokens that are short or have several parts.
_BEARER: Final = (
    r"(?i)(\bbearer[ \t:=]++(?:token[ \t]++)?)(?!auth|token|certif|plugin|\[)[^\s\"',;\\]{6,}+"
)
SHAPES: Final = _rows(
    ("bearer ", _BEARER),
    (
        "|".join(_PREFIXES),
        rf"(?<![A-Za-z0-9])(?:{'|'.join(map(re.escape, _PREFIXES))})[\w.-]{{12,}}+",
    ),
    ("eyj", r"(?<![\w-])eyJ[\w-]{5,}+\.[\w-]++\.?[\w-]*+"),
    ("hook", r"(?<=hooks\.slack\.com/services/)[\w/]++"),
    ("hook", r"(?<=hooks\.slack\.com/workflows/)[\w/]++"),
    ("hook", r"(?<=/api/webhooks/)\d+/[\w-]++"),
    ("hook", r"(?<=/webhookb2/)[\w@/-]++"),
    ("xox", r"(?<![A-Za-z0-9])xox[abeoprs]-[\w.-]{12,}+"),
    ("sk-", r"(?<![A-Za-z0-9])sk-(?=[\w-]{0,99}\d)[\w.-]{12,}+"),
    ("sg.", r"(?<![A-Za-z0-9])SG\.[\w.-]{12,}+"),
    ("akia|asia", r"(?<![A-Za-z0-9])(?:AKIA|ASIA)[A-Z0-9]{12,}+"),
    ("ya29.", r"(?<![\w-])ya29\.[\w-]{10,}+"),
    ("st.", r"(?<![\w.-])st\.[0-9a-f]{24}\.[0-9a-f]{32}\.[0-9a-f]{32}"),
    ("1000.", r"(?<![\w.])1000\.[0-9a-f]{32}\.[0-9a-f]{32}"),
)
SHAPES_BESIDE_SIGNS: Final = _rows(
    ("bearer", _BEARER),
    (
        "$",
        (
            r"\$(?:1|2[abxy]?|5|6|7|9|y|gy|apr1|sha1|argon2\w*|scrypt|pbkdf2[\w-]*)\$[^\s:\"']++"
            r"|(?:scrypt|pbkdf2):[\w:]{1,40}\$[^\s\"']++"
            r"|SCRAM-SHA-\d+\$\d[^\s\"']++|\$ANSIBLE_VAULT;[\d.]++;\w++(?:;\w++)?\s++[0-9a-f\s]++"
        ),
    ),
    (
        "}",
        r"\{(?:S?SHA\d*|S?MD5|CRYPT|PLAIN|CLEARTEXT|BLF-CRYPT|ARGON2\w*|PBKDF2[\w-]*)\}[^\s\"']++",
    ),
    (":aa", r"(?<![0-9:])\d{5,12}:AA[\w-]{20,}+"),
    ("0/|1/|2/", r"(?<![\w/])[012]/\d{10,20}(?:/\d{10,20})?:[0-9a-f]{32}"),
)
# Shorter texts of letters and digits alone hold no secret.
MIN_LENGTH: Final = 16
# Matches of NAMED_VALUE contain a sign or a dash, those of BESIDE_SIGNS and IN_FIELDS a sign.
SIGNS: Final = ("=", ":", "$", "}")


# The fewest characters of a word with a token: a match with one of SHAPES' other marks.
MIN_TOKEN: Final = 15
_OF_TOKENS: Final = {mark for marks, _ in SHAPES for mark in marks} - {"bearer ", "eyj", "hook"}
_TABLES: Final = (
    *(IN_CONTEXT, COMMANDS, ARGUMENTS, NAMED_PAIRS, SHAPES),
    *(PRINTED, REDIRECTED, FED, AFTER_PERCENT, SAID),
)
_OF_WORDS: Final = {
    *IN_TWO_WORDS,
    *(mark for rows in _TABLES for marks, _ in rows for mark in marks),
}


def shortest(marks: set[str], others: Iterable[str] = ()) -> list[str]:
    """Return the marks that contain no other one: to find these suffices."""
    found = (m for m in marks if not any(other in m for other in (*others, *(marks - {m}))))
    return sorted(found)


_SIZE: Final = 3
# Most marks end a word: those by their last three letters, which are searched first.
ENDS: Final[dict[str, list[str]]] = {}
ALONE: Final[list[str]] = []
for _mark in shortest(_OF_WORDS - _OF_TOKENS - {" -"}, SIGNS):
    is_end = _mark[-1] == " " and len(_mark) > _SIZE and " " not in _mark[-_SIZE - 1 : -1]
    (ENDS.setdefault(_mark[-_SIZE - 1 : -1], []) if is_end else ALONE).append(_mark)
# Marks of tokens, by a sign in them that is searched first.
TOKENS: Final[dict[str, list[str]]] = {}
for _mark in shortest(_OF_TOKENS, (*SIGNS, *ALONE)):
    TOKENS.setdefault(next((sign for sign in "-_." if sign in _mark), ""), []).append(_mark)
