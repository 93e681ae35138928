"""Detection of names of secrets by whole words: `db_password`, but not `keyboard`."""

import itertools
import re
import unicodedata
from collections.abc import Callable
from functools import lru_cache
from typing import Final

# A name is secret if one of its words is in _WORDS, or two neighbouring words are in _PAIRS ...
_WORDS: Final = frozenset(
    "password passwd passphrase passcode passwort pwd pw pass token secret psk credential creds"
    " apikey privatekey secretkey accesskey authkey cookie authorization otp totp jwt mnemonic puk"
    " pincode rocommunity rwcommunity rootpw bindpw userpw dbpw adminpw masterauth userpwd"
    " linkkey longtermkey connectionstring pepper"
    # in other languages, without accents
    " kennwort geheimnis zugangscode losungswort contrasena contrasenya senha motdepasse haslo"
    " heslo sifre parola passord losenord salasana tunnussana wachtwoord adgangskode kodeord jelszo"
    " geslo lozinka zaporka parool slaptazodis lykilord pasahitza katasandi matkhau".split()
)
_PAIRS: Final = frozenset(
    "api key,private key,secret key,secret id,access key,auth key,signing key,encryption key,"
    "shared key,preshared key,pre shared,shared access,master key,session key,wep key,wpa key,"
    "wifi key,network key,link key,term key,license key,product key,activation key,account key,"
    "storage key,service key,deploy key,app key,application key,hmac key,aes key,tsig key,rndc key,"
    "luks key,vault key,unseal key,recovery key,recovery code,backup code,jwt key,cookie key,"
    "client key,key data,key material,set cookie,pin code,sim pin,user pin,so pin,pass phrase,"
    "pass word,pass code,seed phrase,snmp community,read community,write community,ro community,"
    "rw community,amz signature,sae password,connection string,kata sandi,mat khau,de passe,"
    "d ordine,clave secreta,clave privada,chave secreta,chave privada,chiave segreta,"
    "chiave privata,cle secrete,cle privee,geheimer schlussel,privater schlussel,"
    "geheimer schluessel,privater schluessel,auth salt,nonce salt,"
    "backup key,rescue key,newrelic license,wlan key,wlan schlussel,wlan schluessel,"
    "app key,admin key,consumer key,unlock pin,unlock code".split(",")
)
_ENDINGS: Final = (
    *("password", "passwd", "passphrase", "passwort", "secret", "apikey", "kennwort", "wachtwoord"),
    *("psk", "passord", "losenord", "salasana", "adgangskode", "contrasena", "motdepasse"),
    *("signingkey", "encryptionkey", "privkey", "privatekey", "secretkey", "accesskey", "authkey"),
    *("masterkey", "sharedkey", "credential", "cred", "authtok", "setcookie", "licensekey"),
    *("activationkey", "recoverykey", "productkey", "sessionkey", "enckey"),
)
# In other scripts, part of the name suffices.
_PARTS: Final = tuple(
    "парол гасло секрет токен 密码 密碼 口令 密钥 密鑰 令牌"
    " パスワード パスフレーズ 暗証 秘密鍵 トークン"
    " 비밀번호 암호 패스워드 토큰 비밀키 κωδικ συνθηματικ סיסמ ססמ كلمةالسر كلمةالمرور رمزعبور"
    " पासवर्ड कूटशब्द รหัสผ่าน პაროლ գաղտնաբառ".split()
)
# A word that ends in `token` or `pw` is secret, too, unless it begins in one of these.
_ONE_WORD: Final = re.compile(
    r"(?!(?:max|min|num|n|pad|eos|bos|unk|cls|sep|mask|stop|next|page|sub|tot|total)token)"
    r"\w{2,40}(?:token|pwd?)"
)
# `pass` before other words is a verb, as in `nf_pass_vlan_input_dev`, unless they say whose it is.
_WHOSE: Final = frozenset(
    "prod production dev test staging live root admin user db main new old hash encrypted".split()
)
# Random values are normal under a name with one of these words ...
_RANDOM_WORDS: Final = frozenset(
    "digest digests sha md5 checksum checksums hash hashes integrity fingerprint fingerprints"
    " thumbprint pubkey revision rev commit etag serial uuid guid wwn wwid invocation modalias"
    " crc csum build edid cid eui blob layer layers keygrip keyid cert certificate"
    " certificates peer peers dnskey dkim".split()
)
# ... or one that ends in one of these.
_RANDOM_ENDS: Final = frozenset("id ids".split())
_SESSION_ENDS: Final = ("sessionid", "sessid")
_ALWAYS: Final = frozenset({"secret id", "rediscli auth", "password in"})
# A name is not secret if it contains one of these pairs,
_HARMLESS_PAIRS: Final = frozenset(
    "proxy pass,fastcgi pass,uwsgi pass,scgi pass,grpc pass,pass through,high pass,low pass,"
    "band pass,key mgmt,key management,single pass,multi pass,first pass,public key,"
    "load credential,import credential,pad token,eos token,bos token,unk token,cls token,"
    "sep token,mask token,parola chiave,condition credential,assert credential,existing secret,"
    "pull secret,secret tool,psk identity,tlspsk identity,psk hint".split(",")
)
_HARMLESS_WORDS: Final = frozenset(
    "bypass compass encompass trespass surpass underpass overpass multipass".split()
)
# ... if its last word shows that the value describes the secret,
_ABOUT: Final = frozenset(
    "file files path paths dir directory folder type kind policy age length size expiry expire"
    " expires expired expiration ttl count algorithm authentication auth domain enabled disabled"
    " required bucket rate limit budget lifetime timeout interval max min agent manager store"
    " storage provider backend driver plugin module method mode url uri endpoint host port issuer"
    " audience scope scopes id name names label title description comment"
    " ref refs reference namespace user username owner group command"
    " cmd program helper service socket prompt format encoding"
    " header field rotation version state status strength quality attempts retries warning"
    " warn change changed change date day days time at by in second minute hour present exists"
    " configured t fd flag flags map maps encryption httponly samesite secure lock query".split()
)
# ... or if its first word asks a question or counts.
_ASKING: Final = frozenset(
    "max min num total used require requires permit allow is has no can must need needs enforce"
    " supports no nopass nopasswd nopassword".split()
)
# `gpg --export-secret-subkeys` has no secret, but the keys that it names.
_DOING: Final = frozenset({"export", "list", "delete"})
_MANY: Final = frozenset({"key", "keys", "subkeys"})
_NAMING: Final = frozenset(
    "name id unit path address user username login email host hostname namespace kind".split()
)

_PART = re.compile(r"[A-Z]+(?![a-z])|[A-Z]?[a-z]+")
_LETTERS_LIKE: Final = {"ł": "l", "Ł": "L", "ø": "o", "Ø": "O", "đ": "d", "ı": "i", "ß": "ss"}  # noqa: RUF001 -- it is what is replaced
# Only the end of a longer name is examined.
_MAX_NAME: Final = 200


def is_secret_name(name: str) -> bool:
    """Return whether a key, flag or variable of this name holds a secret."""
    return _is_secret(name[-_MAX_NAME:])


def is_naming(name: str) -> bool:
    """Return whether a key below a secret one only names or describes the secret."""
    words = _split_words(name[-_MAX_NAME:])
    return name.lower() in _NAMING or (bool(words) and words[-1] in _ABOUT)


def is_plural(name: str) -> bool:
    """Return whether a secret name may mean several secrets, or their number."""
    lower = name.lower()
    return lower.endswith("s") and not lower.endswith(("ss", "credentials", "creds"))


@lru_cache(maxsize=4096)
def is_of_random(name: str) -> bool:
    """Return whether random values are normal under a name: digests, ids, public keys."""
    words = _split_words(name[-_MAX_NAME:])
    if not words or _is_secret(name[-_MAX_NAME:]):
        return False
    is_public = "public" in words and words[-1] in {"key", "keys", "public", "pem"}
    return is_public or words[-1] in _RANDOM_ENDS or not _RANDOM_WORDS.isdisjoint(words)


class _Translation(dict[int, str]):
    """Cached replacements of characters, for `str.translate`."""

    def __init__(self, replace: Callable[[str], str]) -> None:
        self._replace = replace

    def __missing__(self, code: int) -> str:
        self[code] = replacement = self._replace(chr(code))
        return replacement


def _normalize(character: str) -> str:
    """Return the NFKC form of a character; empty for format characters."""
    is_format = unicodedata.category(character) == "Cf"
    return "" if is_format else unicodedata.normalize("NFKC", character)


def _drop_accents(character: str) -> str:
    """Return a character without accents."""
    return "".join(
        _LETTERS_LIKE.get(part, part)
        for part in unicodedata.normalize("NFKD", character)
        if unicodedata.category(part) not in {"Mn", "Cf"}
    )


_NORMALIZED: Final = _Translation(_normalize)
_WITHOUT_ACCENTS: Final = _Translation(_drop_accents)


def plain(text: str) -> str:
    """Return a text in NFKC without format characters, which could disguise a name.

    Characters are normalized one by one: normalization of the whole text can take quadratic time.
    """
    return text if text.isascii() else text.translate(_NORMALIZED)


def fold(name: str) -> str:
    """Return a name without accents, width variants and invisible characters."""
    return name if name.isascii() else name.translate(_WITHOUT_ACCENTS)


_FOLDED_PARTS: Final = tuple(map(fold, _PARTS))


@lru_cache(maxsize=4096)
def _is_secret(name: str) -> bool:
    if not name.isascii():
        folded = re.sub(r"[\s_-]", "", fold(name).lower())
        if any(part in folded for part in _FOLDED_PARTS):
            return True
    raw = _split_words(name)
    words = [w[:-1] if w.endswith("s") and not w.endswith("ss") else w for w in raw]
    pairs = {f"{a} {b}" for a, b in [*itertools.pairwise(raw), *itertools.pairwise(words)]}
    if not _ALWAYS.isdisjoint(pairs) or "".join(raw[-2:]).endswith(_SESSION_ENDS):
        return True
    if not raw or (raw[0] in _DOING and raw[-1] in _MANY):
        return False
    if raw[-1] in _ABOUT or raw[0] in _ASKING or not _HARMLESS_PAIRS.isdisjoint(pairs):
        return False
    if _is_verb(raw):
        raw, words = ([word for word in each if word != "pass"] for each in (raw, words))
    return (
        not _WORDS.isdisjoint([*raw, *words])
        or not _PAIRS.isdisjoint(pairs)
        or any(word.endswith(_ENDINGS) for word in [*words, "".join(words)])
        or any(word.endswith("pass") and word not in _HARMLESS_WORDS for word in words)
        or any(map(_ONE_WORD.fullmatch, words))
    )


def _is_verb(words: list[str]) -> bool:
    """Return whether `pass` is a verb in a name: others follow that do not say whose it is."""
    after = words[words.index("pass") + 1 :] if "pass" in words else []
    return bool(after) and not _WHOSE.issuperset(after)


def _split_words(name: str) -> list[str]:
    return [part.lower() for part in _PART.findall(fold(name))]
