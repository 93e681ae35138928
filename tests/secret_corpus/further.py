"""Forty further kinds of secrets in odd places, made up after the rules: a check of what they miss.

Each is the properties of one object; `{...}` is as in `kinds`, and only that is secret.
"""

import json
import random
from typing import Any, Final

from secret_corpus.kinds import fill

FURTHER: Final[dict[str, Any]] = {
    "systemd set-credential": {"lines": ["SetCredential=api:{p}", "User=app"]},
    "systemd environment with two": {"environment": "LANG=C SMTP_PASSWORD={p} TZ=UTC"},
    "docker compose": {"compose": "services:\n  db:\n    environment:\n      - PG_PASS={p}\n"},
    "compose mapping": {"compose": "environment:\n  POSTGRES_PASSWORD: {p}\n  TZ: UTC\n"},
    "kubernetes secret yaml": {"manifest": "kind: Secret\nstringData:\n  password: {p}\n"},
    "podman argv": {"argv": ["podman", "run", "-e", "REDIS_PASSWORD={p}", "redis"]},
    "ssh config": {"note": "ProxyCommand sshpass -p {p} ssh -W %h:%p jump"},
    "cups uri": {"device_uri": "smb://bob:{p}@printsrv/laser"},
    "fstab": {"line": "//nas/media /mnt cifs username=bob,password={p},uid=1000 0 0"},
    "autofs": {"line": "media -fstype=cifs,user=bob,pass={p} ://nas/media"},
    "iptables comment": {"rule": '-m comment --comment "token={A24}"'},
    "dhcp hook": {"script": "curl -s -u dyn:{p} https://dyn.example.net/update?ip=$IP"},
    "ddclient": {"lines": ["protocol=dyndns2", "login=bob", "password='{p}'"]},
    "wpa supplicant": {"content": 'network={\n ssid="Home"\n psk="{p}"\n}'},
    "eap": {"content": 'identity="bob"\npassword="{p}"\nphase2="auth=MSCHAPV2"'},
    "freeradius client": {"clients": {"ap1": {"ipaddr": "10.0.0.2", "secret": "{p}"}}},
    "grafana ini": {"ini": "[security]\nadmin_user = admin\nadmin_password = {p}\n"},
    "prometheus": {"yaml": "basic_auth:\n  username: prom\n  password: {p}\n"},
    "alertmanager": {"slack": {"api_url": "https://hooks.slack.com/services/T01/B02/{A24}"}},
    "telegraf": {"toml": 'token = "{W86}=="\norganization = "x"'},
    "vault agent": {"env": {"VAULT_TOKEN": "hvs.{W90}"}},
    "terraform state": {"attributes": {"master_password": "{p}", "engine": "mysql"}},
    "ansible inventory": {"line": "db1 ansible_host=10.0.0.3 ansible_ssh_pass={p}"},
    "gitlab runner": {"toml": 'url = "https://gitlab"\ntoken = "glrt-{W20}"'},
    "jenkins": {"xml": "<apiToken>{h34}</apiToken><name>ci</name>"},
    "nextcloud": {"php": "'dbpassword' => '{p}', 'dbuser' => 'nc',"},
    "wordpress": {"php": "define('AUTH_KEY', '{A64}');"},
    "roundcube": {"php": "$config['des_key'] = '{A24}';"},
    "mailman": {"lines": ["admin_user: bob", "admin_pass: {p}"]},
    "opendkim": {"content": "-----BEGIN RSA PRIVATE KEY-----\n{B64}\n{B64}\n"},
    "unbound control": {"lines": ["server-key: /etc/x.key", "auth-token {A32}"]},
    "samba net": {"argv": ["net", "ads", "join", "-U", "admin%{p}"]},
    "rsyslog": {"action": '(type="ommysql" uid="bob" pwd="{p}" db="log")'},
    "bacula": {"director": 'Director { Name = bac-dir; Password = "{p}" }'},
    "duplicati": {"command": "duplicati-cli backup s3://b?auth-username=x&auth-password={p} /etc"},
    "rclone conf": {"content": "[remote]\ntype = b2\naccount = x\nkey = K00{A28}\n"},
    "aws credentials": {
        "content": "[default]\naws_access_key_id = AKIA{U16}\naws_secret_access_key = {B40}\n"
    },
    "pip": {"env": {"PIP_INDEX_URL": "https://__token__:pypi-{W60}@pypi.example.com/simple"}},
    "pairs in rows": {"rows": [["name", "value"], ["db_password", "{p}"], ["db_user", "shop"]]},
    "message": {"last_error": "auth failed for user bob with password '{p}' (code 28)"},
    "in a set of flags": {"flags": {"--token": "{A32}", "--port": 80}},
    "matrix": {"registration": 'registration_shared_secret: "{A48}"\nserver: x'},
}


def further() -> list[tuple[str, dict[str, Any], tuple[str, ...]]]:
    """Return names, properties and secrets."""
    found = []
    for name, properties in FURTHER.items():
        rng = random.Random(name)  # noqa: S311 -- the same values each time
        secrets: list[str] = []

        def made(value: Any) -> Any:
            if isinstance(value, str):
                part = fill(value, rng)  # noqa: B023 -- called at once
                secrets.extend(part.secrets)  # noqa: B023
                return part.text
            if isinstance(value, list):
                return [made(item) for item in value]
            if isinstance(value, dict):
                return {key: made(item) for key, item in value.items()}
            return value

        found.append((name, made(json.loads(json.dumps(properties))), tuple(secrets)))
    return found
