"""Makes the parity texts and their reference vectors.

`PYTHONPATH=tests python tests/scripts/make_parity.py` needs the extra `train` and the models
(`make models`); it writes data/parity_texts.json, data/parity.npz and data/parity_levels.npz. The
tests import from here what both sides must agree on: how a text is made from its recipe, and two
shapes with random weights. Only `main` needs torch.
"""

# ruff: noqa: RUF001 -- characters that look like others are what the texts are for

from __future__ import annotations

import json
import os
import random
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from harness.random_weights import draw_weights

from opdbus import config
from opdbus.models import folder, weights
from opdbus.models.level_table import LEVELS
from opdbus.models.shape import PADDING

if TYPE_CHECKING:
    from opdbus.models.weights import Weights

DATA = Path(__file__).parents[1] / "data"
TEXTS = DATA / "parity_texts.json"
VECTORS = DATA / "parity.npz"
# Vectors of the other levels, projected, which takes a sixth of their size, and of drawn weights.
OTHERS = DATA / "parity_levels.npz"
PROJECTED = 128
COUNT = 200

WORDS = (
    "network name resolution service mail disk volume user session login backup schedule unit"
    " host interface file address port bridge package container mount rule timer socket daemon"
    " kernel firmware certificate renewal journal rotation snapshot encrypted quota gateway"
    " the a of for with when before after every each which starts stops waits listens writes"
    " reads unmounts reconfigures authenticates synchronization NetworkManager systemd-resolved"
    " eth0 192.168.7.20 /var/lib/postgresql 5432 0x1F enp3s0f1 UTF-8 café naïve Straße 日本 данные"
).split()

PLAIN = (
    "", " ", "a", "Z", "7", ".", "é", "中", "🦊", "\t", "\n", "\u200b", "\u00a0", "ß", "ﬁ",
    "The quick brown fox jumps over the lazy dog.",
    "what resolves host names here?",
    "who may log in without a password",
    "systemd unit nginx.service: A high performance web server and a reverse proxy server",
    "network interface eth0: ethernet, dhcp, 10.0.0.12/24",
    "mail leaves this machine through a relay",
    "THE WHOLE SENTENCE IS SHOUTED IN CAPITALS",
    "MiXeD cAsE tExT wItH nO rEaSoN",
    "İstanbul ISPARTA ıssız",
    "ΟΔΥΣΣΕΥΣ ὀδυσσεύς",
    # accents, composed and decomposed
    "Crème brûlée à la carte, déjà vu, Ångström, Dvořák, São Paulo",
    "Cre\u0300me bru\u0302le\u0301e, A\u030angstro\u0308m",
    "Zürich Łódź Þingvellir Ærøskøbing Œuvre",
    "z\u0351\u036b\u0343a\u0329\u034el\u0323\u0321g\u0334o\u0337",
    # Chinese, Japanese, Korean, Thai, Hindi
    "今天天气很好，我们去公园散步。",
    "服务器的磁盘空间不足，请清理日志文件。",
    "名前解決サービスを再起動してください。",
    "ネットワーク カタカナ ﾊﾝｶｸ",
    "네트워크 서비스가 시작되지 않았습니다.",
    "บริการเครือข่ายไม่ทำงาน",
    "नेटवर्क सेवा प्रारंभ नहीं हुई",
    "𠜎𠜱𠝹 rare ideographs 㐀㐁",
    "中English混合text日本",
    # right to left
    "שירות הרשת אינו פועל",
    "خدمة الشبكة لا تعمل على هذا الجهاز",
    "file \u202eevil.txt\u202c with an override",
    "mixed שלום and مرحبا in one line",
    # Cyrillic, Greek
    "Служба резервного копирования запускается каждую ночь",
    "Η υπηρεσία δικτύου ξεκινά αυτόματα",
    # emoji
    "😀 😃 😄", "🚀🚀🚀🚀", "backup done ✅, mail failed ❌, disk ⚠️",
    "👩‍👩‍👧‍👦 family, 👍🏽 skin tone, 🇩🇪 flag", "text🙂without🙃spaces", "☃ ☎ ♥ ★",
    # control characters and odd spaces
    "\x00", "a\x00b", "\x01\x02\x03", "bell\x07 back\x08space \x1b[31mred\x1b[0m",
    "tab\tnew\nline\r\nreturn\rformfeed\x0cvertical\x0bend", "del\x7fete \x85next line",
    "zero\u200bwidth\u200cjoin\u200der\ufeffbom", "soft\u00adhyphen", "\ufffd replaced \ufffd",
    "unit\x1fseparator\x1erecord\x1dgroup\x1cfile", "line\u2028and paragraph\u2029separators",
    "private \ue000 use, not a character \uffff", "tag \U000e0041 and \U0010ffff",
    "   leading", "trailing   ", "  many   spaces \t\t and \n\n\n lines  ",
    "en\u2002em\u2003thin\u2009ideographic\u3000narrow\u202fspaces", "\n\n\n", " \t \r\n ",
    # long and strange words
    "a" * 99, "b" * 100, "c" * 101, "d" * 1000, "antidisestablishmentarianism" * 3,
    "pneumonoultramicroscopicsilicovolcanoconiosis", "x" * 6000, "short " + "y" * 3000 + " short",
    "deadbeef" * 8, "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855",
    "snake_case_identifier_with_many_parts", "camelCaseIdentifierWithManyParts", "kebab-case-name",
    # punctuation
    "...", "!?!?!?", "()[]{}<>", "\"quoted\" 'single' `back`", "a,b;c:d.e/f\\g|h",
    "—en–em…dots«guillemets»„low“", "$€£¥ %‰ §¶ ©®™ °±×÷", "^~`@#&*_+=", "don't won't it's o'clock",
    "-" * 80, "=" * 300, "1,234,567.89 -0.5 +1e-9 0xFF 0b1010 ½ ² ③ Ⅳ",
    "[CLS] [SEP] [PAD] [UNK] [MASK]", "[MASK]", "text[SEP]text", "##ing ##s", "[cls] [ SEP ]",
    # addresses, paths, commands
    "https://user@example.org:8443/a/b/c?x=1&y=%20z#frag", "http://[2001:db8::1]/index.html",
    "ftp://mirror.example/debian/pool/main/l/linux/", "mailto:root@localhost",
    "/usr/lib/systemd/systemd-logind", "C:\\Windows\\System32\\drivers\\etc\\hosts", "../../etc",
    "fe80::1ff:fe23:4567:890a%eth0", "00:1a:2b:3c:4d:5e", "10.0.0.0/8", "2026-11-20T19:45:00+01:00",
    "find / -xdev -type f -size +100M -exec ls -lh {} \\; 2>/dev/null | sort -k5 -h",
    "rsync -aHAX --delete --exclude='/proc/*' / backup@nas:/srv/host/", "chmod 0640 /etc/shadow",
    # JSON, XML, code
    '{"name": "eth0", "ipv4": {"dhcp": true, "address": [{"ip": "10.0.0.2", "prefix": 24}]}}',
    "[]", "{}", "null", "[1, 2.5, -3e10, true, false, null]", '{"nested": {"a": {"b": {"c": []}}}}',
    '"escaped \\u00e9 \\n \\" string"', "<unit name='a'><after>network.target</after></unit>",
    "def embed(texts: list[str]) -> NDArray[np.float32]:\n    return model(texts)\n",
    "SELECT path, text FROM objects WHERE plugin = 'systemd' ORDER BY rank LIMIT 10;",
    # unit files and configuration
    "[Unit]\nDescription=Nightly backup\nAfter=network-online.target\nWants=network-online.target",
    "[Service]\nType=oneshot\nExecStart=/usr/bin/restic backup /home\nNice=10\nUser=backup",
    "[Timer]\nOnCalendar=*-*-* 02:30:00\nPersistent=true\nRandomizedDelaySec=15min",
    "[Install]\nWantedBy=multi-user.target", "ExecStart=/usr/sbin/sshd -D $SSHD_OPTS",
    "SystemCallFilter=@system-service", "RestrictAddressFamilies=AF_UNIX AF_INET AF_INET6",
    "OnCalendar=Mon..Fri *-*-* 09:00:00", "[Socket]\nListenStream=[::]:22\nAccept=yes",
    "UUID=1b2c-3d4e / ext4 defaults,noatime 0 1", "nameserver 9.9.9.9\nsearch lan.example",
    "-A INPUT -p tcp -m tcp --dport 22 -m conntrack --ctstate NEW -j ACCEPT",
    "table inet filter { chain input { type filter hook input priority 0; policy drop; } }",
    "PermitRootLogin no\nPasswordAuthentication no\nAllowGroups ssh-users",
)  # fmt: skip
# Texts too long to write down: (kind, size, seed).
RECIPES = (
    ("words", 5000, 1),
    ("words", 5000, 2),
    *(("words", size, 10 + size) for size in range(180, 260, 8)),
    *(("words", size, 20 + size) for size in (300, 400, 600, 900, 1500, 2500)),
    *(("words", size, 30 + size) for size in (12, 20, 33, 47, 60, 75, 90, 110, 130, 150)),
    *(("name", tokens, 0) for tokens in (252, 253, 254, 255, 256, 257)),
    *(("chinese", size, size) for size in (100, 253, 254, 255, 600, 8000)),
    *(("emoji", size, size) for size in (60, 300)),
    ("hyphenated", 400, 3),
    ("hyphenated", 900, 4),
    ("spaces", 20000, 0),
    ("shout", 400, 5),
)


def invent() -> list[Any]:
    """Give the 200 entries of the file: a text as it is, or the recipe of a long one."""
    entries: list[Any] = [*PLAIN, *map(list, RECIPES)]
    more = range(COUNT - len(entries))
    return entries + [["words", 3 + number % 11, 1000 + number] for number in more]


def text_of(entry: Any) -> str:
    """Give the text of an entry; the same everywhere, for ever."""
    if isinstance(entry, str):
        return entry
    kind, size, seed = entry
    draw = random.Random(seed).random  # noqa: S311 -- not secret, but the same for ever
    words = [WORDS[int(draw() * len(WORDS))] for _ in range(size if kind in _WORDY else 0)]
    if kind == "words":
        return " ".join(words)
    if kind == "hyphenated":
        return "-".join(words)
    if kind == "shout":
        return " ".join(words).upper()
    if kind == "chinese":
        return "".join(chr(0x4E00 + int(draw() * 4000)) for _ in range(size))
    if kind == "emoji":
        return " ".join(chr(0x1F600 + int(draw() * 70)) for _ in range(size))
    if kind == "spaces":
        return "first" + " \t\n" * size + "last"
    return " ".join(["name"] * size)


_WORDY = {"words", "hyphenated", "shout"}


def texts() -> list[str]:
    """Read the committed texts."""
    return [text_of(entry) for entry in json.loads(TEXTS.read_text(encoding="utf-8"))]


# The low level's shape (paraphrase-MiniLM-L3-v2), its vocabulary cut to keep the test small.
L3: dict[str, Any] = {
    "model_type": "bert",
    "num_hidden_layers": 3,
    "hidden_size": 384,
    "num_attention_heads": 12,
    "intermediate_size": 1536,
    "max_position_embeddings": 512,
    "vocab_size": 2000,
    "type_vocab_size": 2,
    "hidden_act": "gelu",
    "layer_norm_eps": 1e-12,
}
L3_LENGTHS = (1, 2, 2, 3, 5, 8, 13, 16, 16, 17, 21, 34, 34, 55, 64, 89, 100, 127, 128, 128)


# The high level's features (all-mpnet-base-v2), smaller to keep the test so.
MPNET: dict[str, Any] = {
    "model_type": "mpnet",
    "num_hidden_layers": 4,
    "hidden_size": 192,
    "num_attention_heads": 12,
    "intermediate_size": 768,
    "max_position_embeddings": 514,
    "vocab_size": 500,
    "relative_attention_num_buckets": 32,
    "hidden_act": "gelu",
    "layer_norm_eps": 1e-5,
}
MPNET_LENGTHS = (1, 2, 2, 3, 8, 9, 16, 17, 33, 64, 65, 91, 92, 128, 129, 200, 200, 300, 384)
PADDING_AT = (0, 5, 6, 30)  # places in some rows where a text spells MPNet's padding token


def drawn(shape: dict[str, Any]) -> Weights:
    """Make a shape's weights; RandomState's streams are promised never to change."""
    return draw_weights(shape, np.random.RandomState(3), 0.05)


def mpnet_drawn() -> Weights:
    """Make the MPNet shape's weights, with distances that matter."""
    made = drawn(MPNET)
    return {**made, weights.RELATIVE: made[weights.RELATIVE] * np.float32(20)}


def rows_of(lengths: tuple[int, ...], words: int) -> list[np.ndarray]:
    """Make rows of token ids of several lengths, some of them equal."""
    draw = np.random.RandomState(4)
    return [draw.randint(0, words, length).astype(np.int64) for length in lengths]


def l3_rows() -> list[np.ndarray]:
    """Make the rows for the L3 shape."""
    return rows_of(L3_LENGTHS, L3["vocab_size"])


def mpnet_rows() -> list[np.ndarray]:
    """Make the rows for the MPNet shape, every other one with padding tokens in it."""
    rows = rows_of(MPNET_LENGTHS, MPNET["vocab_size"])
    for row in rows[1::2]:
        row[[place for place in PADDING_AT if place < len(row)]] = PADDING
    return rows


def projected(vectors: np.ndarray) -> np.ndarray:
    """Project vectors (n, dimension) onto PROJECTED directions at right angles; none is spared."""
    drawn = np.random.RandomState(5).standard_normal((vectors.shape[1], PROJECTED))
    directions, _ = np.linalg.qr(drawn)
    return vectors.astype(np.float64) @ directions


def official_vectors(path: Path, of: list[str]) -> np.ndarray:
    """Embed texts with sentence-transformers, as its users do: fp32 on the CPU."""
    from sentence_transformers import SentenceTransformer

    model = SentenceTransformer(str(path), device="cpu")
    # the low model's are not of length 1
    return model.encode(
        of, convert_to_numpy=True, normalize_embeddings=True, show_progress_bar=False
    )


def transformers_vectors(
    shape: dict[str, Any], weights: Weights, rows: list[np.ndarray]
) -> np.ndarray:
    """Embed rows of token ids with transformers, then mean and normalize."""
    import torch
    from transformers import BertConfig, BertModel, MPNetConfig, MPNetModel

    classes = {"bert": (BertConfig, BertModel), "mpnet": (MPNetConfig, MPNetModel)}
    configuration, kind = classes[shape["model_type"]]
    model = kind(configuration(**shape), add_pooling_layer=False).eval()
    state = {name: torch.from_numpy(value) for name, value in weights.items()}
    missing, unexpected = model.load_state_dict(state, strict=False)
    assert not unexpected
    assert not [name for name in missing if "_ids" not in name], missing
    with torch.no_grad():
        means = [model(torch.from_numpy(row)[None]).last_hidden_state[0].mean(0) for row in rows]
        return torch.nn.functional.normalize(torch.stack(means), dim=1).numpy()


def main() -> None:
    """Write the texts and the reference vectors."""
    given = config.load(os.environ)
    folders = {level.name: folder.find_model(level, given) for level in LEVELS.values()}
    TEXTS.write_text(json.dumps(invent(), ensure_ascii=True, indent=0) + "\n", encoding="utf-8")
    medium = official_vectors(folders["medium"], texts())
    assert medium.shape == (COUNT, 384)
    # what is left out is 40 times less than may differ, and a fifth of the file
    np.savez_compressed(VECTORS, medium=(np.round(medium * 2.0**21) / 2.0**21).astype(np.float32))
    others = {name: projected(official_vectors(folders[name], texts())) for name in ("low", "high")}
    others["l3"] = transformers_vectors(L3, drawn(L3), l3_rows())
    others["mpnet"] = transformers_vectors(MPNET, mpnet_drawn(), mpnet_rows())
    np.savez_compressed(OTHERS, **{name: v.astype(np.float32) for name, v in others.items()})
    print(f"{len(texts())} texts, {VECTORS.stat().st_size + TEXTS.stat().st_size} bytes")


if __name__ == "__main__":
    main()
