"""Secrets never come in: what is hidden, what must stay, and what it costs."""

import json
import time
from collections.abc import Callable, Iterable
from typing import Any

import pytest
from conftest import EXAMPLE
from hypothesis import given, settings
from hypothesis import strategies as st

from opdbus.language.object_text import render
from opdbus.state import secret_patterns
from opdbus.state.file import StateFile
from opdbus.state.object import FILE, Identity
from opdbus.state.redact import redact, redact_identity, redact_object, redact_text
from opdbus.state.secret_names import is_plural, is_secret_name, plain
from opdbus.state.secret_text import CLEAN, REDACTED, suspects
from opdbus.state.secret_words import FORMATS, SHAPED, STARTS

# Every secret in these strings contains SECRET, and no other part of them does.
HIDDEN = """
postgres://bob:hunter-SEC-2@db.example.com:5432/shop
postgresql+asyncpg://bob:SEC@db/shop?sslmode=require
mysql://root:SEC@localhost/x
mongodb+srv://u:SEC@cluster0.abcd.mongodb.net/test?retryWrites=true
mongodb://u:SEC@h1:27017,h2:27017,h3:27017/db
redis://:SEC@cache:6379/0
rediss://default:SEC@cache:6379/0
redis://:123SEC@cache:6379
amqp://guest:SEC@rabbit:5672/%2Fvhost
amqps://user:SEC@host
ftp://anonymous:SEC@ftp.example.com/pub
sftp://u:SEC@h/
ldap://cn=admin:SEC@ldap
smb://WORKGROUP;bob:SEC@server/share
rtsp://admin:SEC@10.0.0.9:554/stream1
https://bob:SEC@example.com/path?x=1
http://bob:SEC@[::1]:8080/
socks5://bob:SEC@127.0.0.1:1080
smtp://bob@example.com:SEC@mail.example.com:587
postgres://bob:p@SEC@db/shop
postgres://bob:p/SEC/x@db/shop
postgres://bob:SEC:x@db/shop
postgres://bob:a#SEC?b@db/shop
postgres://bob:pa%40SEC%2Fx@db/shop
postgres://bob:it'sSEC@db/shop
postgres://bob:it"sSEC@db/shop
connect to postgres://bob:SEC@db/shop, then wait
from http://a:SEC1@h1/x to http://b:SEC2@h2/y
postgres://a:SEC1@h1/db,postgres://b:SEC2@h2/db
(see <https://bob:SEC@example.com/>)
https://ghp_SEC0123456789abcdefghij@github.com/org/repo.git
https://0123SEC456789abcdef0123456789abcdef@o1.ingest.sentry.io/1
https://x-access-token:SEC@github.com/org/repo
jdbc:postgresql://db/shop?user=bob&password=SEC
jdbc:mysql://bob:SEC@db:3306/shop
jdbc:oracle:thin:scott/SEC@//db:1521/orcl
jdbc:sqlserver://db:1433;databaseName=shop;user=sa;password=SEC;encrypt=true
bob:SEC@tcp(127.0.0.1:3306)/shop?parseTime=true
DSN=bob:SEC@unix(/run/mysqld.sock)/shop
root:SEC@10.0.0.1:5432/db
Server=db;User Id=sa;Password=SEC;Database=shop
Endpoint=sb://x.servicebus.windows.net/;SharedAccessKeyName=Root;SharedAccessKey=SEC=
DefaultEndpointsProtocol=https;AccountName=x;AccountKey=SEC==;EndpointSuffix=core.windows.net
user=a password=SEC host=c
host=db user='a' password='SEC x SEC' dbname=shop
https://x.blob.core.windows.net/c?sv=2020&sig=SECa%2Bb%3D&se=2030
https://maps.example.com/?key=SECabc&q=1
https://hooks.example.com/alert?token=SEC
https://hooks.slack.com/services/T0SEC0/B0SEC0/xSECx
https://discord.com/api/webhooks/123456/SEC-abc_def
https://s3/x?X-Amz-Signature=SECabc&X-Amz-Date=1
--password=SEC
--password SEC
--password 'SEC SEC'
--password "SEC SEC"
--password='SEC SEC' --verbose
--db-password=SEC
-password SEC
-pw SEC
--token SEC --labels a
--api-key SEC
--apikey=SEC
--requirepass SEC
--auth-token=SEC
--secret-key SEC
--passphrase SEC
--client-secret=SEC
serve --admin_password=SEC --port 80
PGPASSWORD=SEC psql -h db -U bob
MYSQL_PWD=SEC mysqldump shop
SSHPASS=SEC sshpass -e ssh bob@h
RESTIC_PASSWORD=SEC restic backup /
BORG_PASSPHRASE='SEC SEC' borg create
REDISCLI_AUTH=SEC redis-cli
export API_TOKEN="SEC"; run
Environment="DB_PASSWORD=SEC SEC" "X=y"
env KEY_PASSPHRASE=SEC rails s
mysql -u root -pSEC shop
/usr/bin/mysql -pSEC
mysqldump --all-databases -pSEC > /x
mariadb -u root -p'SEC SEC' shop
mongo -u a -p SEC db
sshpass -p SEC ssh bob@host
sshpass -pSEC ssh bob@host
sshpass -p 'SEC SEC' ssh bob@host
sh -c "mysql -pSEC shop"
bash -c 'sshpass -p SEC ssh h'
cat x | mysql -pSEC
curl -u bob:SEC https://example.com
curl -ubob:SEC https://example.com
curl --user bob:SEC https://example.com
curl --user=bob:SEC https://example.com
curl -x p:3128 --proxy-user u:SEC http://x
curl -H 'Authorization: Bearer SEC' https://x
curl -H "X-API-Key: SEC" https://x
curl -H 'X-Auth-Token: SEC' https://x
curl -b 'session=1' -H 'Cookie: sid=SEC; b=SEC' http://x
wget --http-password=SEC http://x
redis-cli -h x -a SEC ping
ldapsearch -x -D cn=admin -w SEC -b dc=x
docker login -u bob -p SEC registry
smbclient //s/x -U bob%SEC
unzip -P SEC x.zip
7z x -pSEC a.7z
ipmitool -H h -U a -P SEC power status
openssl enc -aes-256-cbc -pass pass:SEC
openssl rsa -passin pass:SEC
snmpwalk -v2c -c SEC host
ssh-keygen -t rsa -N SEC
ssh-keygen -t rsa -N 'SEC SEC'
keytool -storepass SEC -keypass SEC
nmcli device wifi connect Home password SEC
nmcli con modify x wifi-sec.psk SEC
rabbitmqctl add_user bob SEC
rabbitmqctl change_password bob SEC
xfreerdp /u:bob /p:SEC /v:h
net use x: /user:bob /password:SEC
echo 'root:SEC' | chpasswd
echo root:SEC | sudo chpasswd
machine api.example.com login bob password SEC
Authorization: Bearer SECabcdef
Authorization: Basic SECc2Vj
Authorization: Digest username=a, response=SEC
authorization=Bearer SECabcdef
Proxy-Authorization: Basic SEC
Cookie: session=SEC
Set-Cookie: sid=SEC; HttpOnly
x-api-key: SEC
bearer SECabcdefgh
Bearer SEC.abc-def_ghi
token: SEC
api_key: SEC
apiKey=SEC
API key: SEC
private key: SEC
secret access key = SEC
Password: SEC horse SEC staple
Password : SEC
password:SEC
password => 'SEC'
'password' => 'SEC',
$config['db_password'] = 'SEC';
password := SEC
password="SEC SEC" # x
password="SEC
password='it\\'s SEC'
{"user": "bob", "password": "SEC SEC"}
{"a": {"db": [{"password": "SEC"}]}}
{"passwords": ["SEC1", "SEC2"], "user": "bob"}
[{"name": "DB_PASSWORD", "value": "SEC"}]
see {"user": "bob", "password": "SEC SEC"} there
see {\\"user\\": \\"bob\\", \\"password\\": \\"SEC SEC\\"} there
level=info msg="{\\"token\\":\\"SEC\\"}"
{'password': 'SEC'}
{"password": 17SEC
<password>SEC</password>
<db:Password type="x">SEC</db:Password>
<user name="bob" password="SEC"/>
rw,vers=3.1.1,username=larkmoor,password=SEC,seal
ike=aes256-sha256-modp2048; PSK=SEC; dpd=30s
%any %any : PSK "SEC"
psk=SEC
psk="SEC SEC"
wpa_passphrase=SEC SEC
wpa_psk=SEC
wep_key0=SEC
sae_password=SEC
PrivateKey = SEC=
PresharedKey = SEC=
preshared_key=SEC
root:$6$saltSEC$SECabc:19000:0:99999:7:::
$2y$10$SECabcdefghijklmnop
bob:$apr1$SEC$SEC
$argon2id$v=19$m=65536,t=3,p=4$SEC$SEC
{SSHA}SECabc==
userPassword: {SSHA}SECabc==
$y$j9T$SEC$SEC
SCRAM-SHA-256$4096:SEC
ghp_SEC0123456789abcdefghijklmnopqrst
token ghp_SEC0123456789abcdefghijklmnopqrst expired
ghp_SEC-lower-letters
file ghp_SEC2-conf-7.conf
hvs.SECabcdefghij
/api/webhooks/1/SEC
eyJSECab.SEC
github_pat_SEC11ABCDEFG0123456789_abc
gho_SEC0123456789abcdefghijklmnopqrst
glpat-SEC0123456789abcdef
xoxb-SEC0123456789-0123456789012-abc
AKIASECDEFGHIJKLMNOP
ASIASECDEFGHIJKLMNOP
sk-SEC0123456789abcdefghijklmnop
sk-proj-SEC0123456789abcdefghij
sk-ant-api03-SEC0123456789
sk_live_SEC0123456789abcdef
rk_live_SEC0123456789abcdef
whsec_SEC0123456789abcdef
npm_SEC0123456789abcdefghijklmnop
//npm.example.org/:_authToken=SEC
pypi-SECAgEIcHlwaS5vcmc0123
hf_SEC0123456789abcdefghij
dop_v1_SEC0123456789abcdef
hvs.SEC0123456789abcdef
SG.SEC0123456789.abcdef
AIzaSEC0123456789abcdefghijklmnopqrstuvw
ya29.SEC0123456789
AGE-SECRET-KEY-1SECQQQQ
123456789:AASEC0123456789abcdefghijklmnopqrstuv
eyJhbGciOiJIUzI1NiJ9.eyJzdWIiOiJTRUMifQ.SECabc
session eyJhbGciOiJIUzI1NiJ9.SECzdWIiOiJTRUMifQ.SECabc end
LS0tLS1CRUdJTiBSU0EgUFJJVkFURSBLRVktLS0tSEC
aws_secret_access_key = SEC/K7MDENG/bPxRfiCY
db.password=SEC
spring.datasource.password=SEC
olcRootPW: SEC
bindpw SEC_not_a_key=1 bindpw=SEC
rocommunity=SEC
requirepass SEC
wpa_psk SEC
steghide extract -sf a.jpg -p hunter7SEC
mcrypt -k hunter7SEC a
sqsh -S h -P hunter7SEC
net use z: /pass:hunter7SEC
consul acl set-agent-token default hunter7SEC
virsh set-user-password vm bob hunter7SEC
redis-cli ACL SETUSER bob on >SEC
git clone https://hunter7SEC@github.com/x/y.git
SENTRY_DSN=https://hunter7SEC@o1.ingest.example/1
bot12345:AA1111111111111111111111111SEC
secret "hunter7SEC==";
community hunter7SEC
client1:hunter71deadbeef0011SEC
Authorization: Digest username="a", response="hunter7SEC"
acme.sh --set CF_Key=hunter7SEC
export CF_Key="hunter7SEC"
consumer_key=hunter7!SEC
keepassxc-cli open db.kdbx <<< hunter7SEC
kpcli --pwfile <(echo hunter7SEC)
sops --set '["db"]["password"] "hunter7SEC"' f
chat -v '' ATDT ogin: bob word: SEC
Credentials("Realm", "host", "bob", "SEC")
box.schema.user.passwd('bob', 'SEC')
traefik basicauth.users=bob:hunter7SEC
AKIDEXAMPLE12345678:hunter7SEC
secure-cookie-key hunter7SEC
b  User-Password == "a-SEC-1"
echo -n xSEC7 | kubectl create secret generic x --from-file=key=/dev/stdin
variable "admin_pw" { default = "xSEC7" }
register => bob:SEC@sip.example.com/100
set area 0 authentication md5 key-id 1 md5-key SEC
subscription-manager register --activationkey SEC
wbinfo --authenticate=bob%SEC
mc config host add h https://h minio SEC
sqlite3 x "PRAGMA key='SEC'"
bw login bob@example.com SEC
https://h/dav bob Rosen-SEC-5-garten
use address h allow admin:"SEC"
iscsi://bob%SEC@h/iqn.2020-01.x:y/1
password bob xSEC77
"bob" "hunter7SEC"
la contraseña de root es hunter7SEC
senha do admin: hunter7SEC
wachtwoord is hunter7SEC
het wachtwoord voor bob is hunter7SEC
heslo je hunter7SEC
A senha da rede é hunter7SEC
adgangskoden til bob er hunter7SEC
lösenordet är hunter7SEC
salasana on hunter7SEC
hasło dla bob to hunter7SEC
пароль для root: hunter7SEC
Generated password for user "admin": hunter7SEC
echo hunter7SEC | sudo -Sk whoami
smbclient //h/x hunter7SEC -U bob
lösenord för bob hunter7SEC
mot de passe de bob: hunter7SEC
the passphrase for the backup disk is hunter7SEC
password on db01 hunter7SEC
the password on web1.example is hunter7SEC
root password on db01: hunter7SEC
the token on gw01 is hunter7SEC
community on sw01 hunter7SEC
password for root hunter7SEC please
password for admin hunter7SEC on db01
passwd for backup hunter7SEC was changed
password for the admin hunter7SEC now
http://h/stream?auth=swordSEC
http://h/stream?key=swordSEC&x=1
https://h/p?session=swordSEC
export_secret: swordSEC
secret_identity: swordSEC
password requisitepw hunter7SEC
snmp community: hunter7SEC
ENCKEY=SEC
"""
HIDDEN_CASES = [
    line.replace("SEC_not_a_key", "other") for line in HIDDEN.strip().splitlines() if line
]

PEM_BODY = "MIISECRETBODYSECaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa"
PEM_NAMES = (
    "PRIVATE KEY",
    "RSA PRIVATE KEY",
    "EC PRIVATE KEY",
    "DSA PRIVATE KEY",
    "OPENSSH PRIVATE KEY",
    "ENCRYPTED PRIVATE KEY",
    "PGP PRIVATE KEY BLOCK",
)

STAYING = """
http://host:8080/path@x
http://host:8080
http://host:8080?next=a@b
http://127.0.0.1:9900/metrics
"http://host:8080","mail":"a@b.c"
http://[::1]:8080/x@y
http://[fe80::1%25eth0]:80/a@b
git@github.com:org/repo
git@github.com:org/repo.git
ssh://git@host/x
ssh://git@host:2222/org/repo@v1
https://bob@example.com/path
sip:4315501@sip.example.net:5060
mailto:bob@example.com
unix:///run/x.sock
nginx:1.25@sha256:0123456789abcdef0123456789abcdef
registry.example.com:5000/app:v1.2@sha256:12345
keyboard_layout=de
keyboard_layout: us
public_key=abcdef0123456789abcdef=
PublicKey = YWJjZGVmZ2hpamtsbW5vcA==
ssh-ed25519 AAAAC3NzaC1lZDI1NTE5AAAAIabc bob@host
password_file=/etc/x/pw
--password-file /run/secrets/pw
--password-file=/run/secrets/pw --verbose
--token-file=token.txt
PASSWORD_FILE=/run/secrets/pw
password=/run/secrets/pw
ssl_certificate_key /etc/ssl/private/x.key;
private_key = /etc/ssl/private/host.key
token_bucket_rate=100
token_bucket: 5
max_tokens=5
max_tokens: 5
tokens: 512
PasswordAuthentication no
PasswordAuthentication=no
PasswordAuthentication: yes
PermitEmptyPasswords: no
PermitRootLogin prohibit-password
password: required
monkey=banana
turkey: sandwich
tokenizer=wordpiece
secretary: alice
passenger_count=4
passenger: phusion
compass=north
bypass=10.0.0.0/8
passive=yes
passthrough=1
proxy_pass: backend
author=bob
authority: example.com
authorized_keys=/home/bob/.ssh/authorized_keys
key_mgmt=WPA-PSK
wpa_key_mgmt=WPA-PSK SAE
pairwise=CCMP
aa:bb:cc:dd:ee:ff
52:54:00:12:34:56@eth0
12:30
backup at 12:30:45 every day
2001:db8::1
fe80::1%eth0
::1
fd00:1234:5678::/48
10.0.0.0/24 via 10.0.0.1
PATH=/usr/bin:/opt/secret:/bin
PWD=/home/bob
OLDPWD=/
cookie=0x1a, priority=100
system_u:object_r:passwd_file_t:s0
systemd-ask-password-console.service
systemd-ask-password-console.path: Forward Password Requests
org.freedesktop.secrets
After=network.target secrets.target
LoadCredential=db-pw:/etc/credstore/db-pw
docker run -p 8080:80 -u 1000:1000 nginx
docker run --user 1000:1000 nginx
mkdir -p /srv/data
ssh -p 2222 bob@host
psql -p 5432 -U bob
rsync -a -p src/ bob@host:/dst
/sbin/agetty -o '-p -- \\\\u' --noclear - $TERM
sudo -u mysql ls
mysql -u root -P 3306 -h db
bearer authentication
std::secret::Store
-----BEGIN CERTIFICATE-----
-----BEGIN PUBLIC KEY-----\\nMIIB
LS0tLS1CRUdJTiBDRVJUSUZJQ0FURS0tLS0t
pam_unix.so try_first_pass nullok
passwd: files systemd
sk-learn
/dev/disk/by-id/ata-SK-hynix_123456789012
eyJ is how a token begins
vault-secrets:1.2.3
$PATH and ${HOME}
costs $5 or $6 at most
a=b, c: d
x
ConditionCredential=db.password
ConditionCredential=!passwd.hashed-password.root
PassEnvironment=HOME LANG TOKEN_FILE
PassEnvironment=DB_PASSWORD
net.bridge.bridge-nf-pass-vlan-input-dev = 0
bridge-nf-pass-vlan-input-dev=0
PyJWT==2.15.1
pypi-attestations==0.0.20
mysql -u root -p shop
curl -u bob https://h
curl -U bob -x p:3128 https://h
curl -u : --negotiate https://h
lftp -u bob sftp://h
smbclient -U bob //nas/share
rpcclient -U "" -N nas
gpg --passphrase-fd 0 -d f.gpg
session.cookie_httponly = 1
smtp_sasl_password_maps = hash:/etc/postfix/sasl_passwd
password_query = SELECT username, password FROM users WHERE username = '%u'
default_pass_scheme = SHA512-CRYPT
password_encryption = scram-sha-256
wg set wg0 peer q7Yt0s6mXl1Hn0WvZcT3pRfKe8bJd5uGaLo4iEwS2nY= allowed-ips 10.0.0.2/32
imagePullSecrets: [{name: regcred}]
pip install PyJWT==2.15.1 keyring
usermod -p '!' bob
echo 1 | sudo tee /proc/sys/net/ipv4/ip_forward
echo hello | openssl dgst -sha256
mysqladmin -u root -p status
helm install x bitnami/postgresql --set auth.existingSecret=pg
existingSecret: pg-secret
Tokens: 0: systemd-fido2
mysql -u root -p wordpress < dump.sql
echo hello | docker exec -i c cat
AssertCredential=x.y
net.bridge.bridge-nf-pass-vlan-input-dev=1
PyJWT==2.9.0
curl -u bob https://h
passwd: password updated successfully
postfix/smtpd[12]: warning: SASL LOGIN authentication failed: UGFzc3dvcmQ6
npm_config_registry=https://registry.npmjs.org/
hf_transfer_enabled=1
pypi-server-standalone 2.0
PassEnvironment=LANG
LoadCredential=tls.key:/etc/ssl/private/tls.key
LoadCredential=db-password
ImportCredential=passwd.*
PrivateKeyFile=/etc/systemd/network/wg0.key
PresharedKeyFile=/run/secrets/psk
PassCredentials=yes
PassPacketInfo=no
token bucket filter with rate 10mbit burst 32kbit latency 400ms
tc qdisc add dev eth0 root tbf rate 1mbit burst 32kbit latency 400ms
kernel.keys.root_maxbytes = 25000000
net.ipv4.tcp_fastopen_key = 00000000-00000000-00000000-00000000
net.ipv4.tcp_syncookies = 1
PasswordAuthentication yes
KbdInteractiveAuthentication no
PubkeyAuthentication yes
AuthorizedKeysFile .ssh/authorized_keys
KexAlgorithms curve25519-sha256,curve25519-sha256@libssh.org,ecdh-sha2-nistp256
PubkeyAcceptedAlgorithms ssh-ed25519,rsa-sha2-512
MACs hmac-sha2-512-etm@openssh.com
HostKey /etc/ssh/ssh_host_ed25519_key
PreferredAuthentications publickey,password
django-rest-framework-simplejwt==5.3.1
SecretStorage==3.3.3
libpwquality1 1.4.5-5
gnome-keyring 48.0-1
pwgen 2.08-2
ssh-askpass-gnome 1:10.0p1-7
libpasswdqc0
ENCRYPT_METHOD YESCRYPT
auth [success=1 default=ignore] pam_unix.so nullok
password required pam_deny.so
key = value
PRIMARY KEY (`id`)
Keyboard layout us
XKBLAYOUT=de
KEYMAP=de-latin1
psk-flags=0
auth-alg=open
gtk-key-theme-name = 'Default'
ssh -p 22 bob@h
sftp -P 2222 bob@h
docker run -d -p 127.0.0.1:5432:5432 -v db:/var/lib postgres
mysql -P 3307 -h db1
psql -p 5433 -U bob -w shop
nc -u 10.0.0.1 514
nmap -p 22,80,443 10.0.0.0/24
strace -p 1234 -f
kill -s HUP 1234
ls -a /etc
wget -P /tmp https://h/f
wget --no-check-certificate -q https://h
smbclient -N -L nas
mount -t cifs //nas/x /mnt -o credentials=/etc/nas.cred
mount -o user,noauto /dev/sdb1 /mnt
cryptsetup luksOpen /dev/sdb1 data
cryptsetup luksOpen --key-file /root/k /dev/sdb1 data
swap /dev/sda3 /dev/urandom swap,cipher=aes-xts-plain64,size=512
data /dev/sda2 /etc/keys/data.key luks
restic -r sftp:bob@h:/srv/repo backup /etc
restic -r rest:https://h:8000/ backup
rsync -avp bob@h:/a /b
ldapsearch -x -W -D cn=admin,dc=x -b dc=x
ldapsearch -x -H ldap://l -b dc=example,dc=org uid=bob
kinit -k -t /etc/krb5.keytab host/h
openssl x509 -in c.pem -noout -fingerprint -sha256
openssl pkcs12 -in c.p12 -passin env:PW
gpg --keyserver keys.openpgp.org --send-keys 0x9E1F2A3B4C5D6E7F
gpg: Signature made Tue 01 Jul 2025 using RSA key 9B3F5C0E71D24A6B8C0D9E1F2A3B4C5D6E7F8091
Failed password for invalid user admin from 10.0.0.5 port 51234 ssh2
bob : 3 incorrect password attempts ; TTY=pts/0 ; PWD=/home/bob ; USER=root ; COMMAND=/bin/ls
gkr-pam: unable to locate daemon control file
The password for root is not set
This man page describes the format of the password file
the password is stored encrypted in /etc/shadow
Enter the passphrase when prompted
a passphrase is required to unlock the volume
please type the passphrase for disk data (sdb1)
Forward Password Requests to Wall Directory Watch
systemd-tty-ask-password-agent --watch --console
the token expires in 3600 seconds
token expired
invalid token at line 3
unexpected token '}' in JSON at position 12
syntax error near unexpected token `done'
private key does not match the certificate
license key is missing
key exchange: kex algorithm: curve25519-sha256
pass_persist .1.3.6.1.4.1.2021.255 /usr/local/bin/script
proxy_pass http://127.0.0.1:8080;
auth_basic "Restricted area";
ServerSignature Off
AuthType Basic
ProxyPassReverse /api http://127.0.0.1:8080/
smtpd_tls_key_file=/etc/ssl/private/ssl-cert-snakeoil.key
smtpd_tls_session_cache_database = btree:${data_directory}/smtpd_scache
ssl_key = </etc/dovecot/private/dovecot.pem
http_access allow localhost
PSKsecrets = /etc/stunnel/psk.txt
stats socket /run/haproxy/admin.sock mode 660 level admin
timeout client 50000
protected-mode yes
hostssl all all 0.0.0.0/0 md5
old_passwords=0
skip-grant-tables
SELECT user, authentication_string FROM mysql.user
max_tokens: 4096
rd.luks.uuid=luks-9b3f5c0e-71d2-4a6b-8c0d-9e1f2a3b4c5d
cryptdevice=UUID=9b3f5c0e-71d2-4a6b-8c0d-9e1f2a3b4c5d:root rd.luks.options=discard
root=iscsi:10.0.0.1::3260::iqn.2024-01.org.example:target
console=ttyS0,115200n8 console=tty0
systemd.set_credential_binary
InitiatorName=iqn.1993-08.org.debian:01:9b3f5c0e71d2
iscsiadm -m node -T iqn.2024-01.org.example:t -p 10.0.0.1:3260 --login
nmcli connection modify Home wifi-sec.key-mgmt wpa-psk
ssh-ed25519 AAAAC3NzaC1lZDI1NTE5AAAAIGq7Yt0s6mXl1Hn0WvZcT3pRfKe8bJd5uGaLo4iEwS2n bob@h
h ssh-ed25519 AAAAC3NzaC1lZDI1NTE5AAAAIGq7Yt0s6mXl1Hn0WvZcT3pRfKe8bJd5uGaLo4iEwS2n
age1ql3z7hjy54pw3hyww5ayyfg7zqgvc7w3j2elw8zmrj2kg5sfn9aqmcac8p
example.com. IN DS 12345 13 2 9B3F5C0E71D24A6B8C0D9E1F2A3B4C5D9B3F5C0E71D24A6B8C0D9E1F2A3B4C5D
_443._tcp.h. TLSA 3 1 1 9b3f5c0e71d24a6b8c0d9e1f2a3b4c5d9b3f5c0e71d24a6b8c0d9e1f2a3b4c5d
9b3f5c0e-71d2-4a6b-8c0d-9e1f2a3b4c5d
S3Z1NB0K123456
etag: "9b3f5c0e71d24a6b8c0d9e1f2a3b4c5d"
cookie=0x0, duration=123.4s, table=0, n_packets=12
XAUTHORITY=/run/user/1000/gdm/Xauthority
SUDO_ASKPASS=/usr/bin/ksshaskpass
token_endpoint: https://h/oauth2/token
AUTH_TYPE=basic
PASSWORD_MIN_LENGTH=12
secretName: tls-secret
automountServiceAccountToken: false
kubeadm init --pod-network-cidr=10.244.0.0/16
docker secret create db ./pw.txt
podman secret create db /etc/pw.txt
podman secret ls
podman secret ls
docker login -u bob registry.h
aws s3 ls s3://bucket
gcloud auth login
gh auth status
/etc/passwd-
/etc/shadow
/etc/ssl/private/ssl-cert-snakeoil.key
/run/credentials/systemd-journald.service
/usr/share/polkit-1/actions/org.freedesktop.secret.policy
org.freedesktop.login1.set-user-linger
Certificate and Key Storage
D-Bus User Message Bus
passwd --expire bob
useradd -m -s /bin/bash -G sudo bob
cat key.pub | wg pubkey
getent shadow
find / -perm -4000 -type f
chmod 600 /etc/app/token
ls -l /etc/ssl/private/
mysqladmin ping
mysqladmin --defaults-file=/etc/mysql/debian.cnf shutdown
sqlcmd -S db1 -E -Q 'select 1'
rabbitmqctl list_users
consul members
terraform plan -out tf.plan
xfreerdp /v:h /u:bob /p
x11vnc -rfbauth /etc/vncpasswd
ykman list
tpm2_getcap properties-fixed
pin: out of range
pinctrl 10 at pin 42
the pinned version is 1.2.3
GPIO pin 27 is used by led0
login: timed out after 60 seconds
session opened for user root
session-3.scope
Started Session 3 of User bob.
user session cookie lifetime 3600
cookies: 12
same-site cookie policy
CSRF cookie not set
community edition 2.4.0
MariaDB Community Server 11.4
contact the community at https://h/forum
cipher=aes-xts-plain64:sha512
keyslots: 0 1 2
token 0: systemd-tpm2
Symmetric-key AES 256
algorithm hmac-sha256;
Subkey-Type: RSA
ssh://git@github.com:22/o/r.git
git@github.com:o/r.git
postgres://bob@db1/shop
redis://cache:6379/0
ldap://l:389/dc=x
smb://nas/share
https://h/x?next=%2Fhome%2Fbob
https%3A%2F%2Fh%2Fa%3Fb%3D1
/mnt/My%20Disk/file
50%25 done
client1: connected from 10.0.0.5
postgres:16-alpine
bob:x:1000:1000:Bob,,,:/home/bob:/bin/bash
nobody:x:65534:65534:nobody:/nonexistent:/usr/sbin/nologin
daemon:*:19000:0:99999:7:::
bob:100000:65536
LS_COLORS=rs=0:di=01;34
0 3 * * * root certbot renew -q
@reboot bob /home/bob/start.sh -p 8080
OnCalendar=*-*-* 03:00:00
ExecStart=/usr/bin/app --token-file /etc/app/token
ExecStart=/usr/bin/vault server -config=/etc/vault.d
Environment=TOKEN_PATH=/run/token
Environment="SECRET_STORE=vault"
EnvironmentFile=-/etc/default/secrets
Description=Password Manager
BusName=org.freedesktop.secrets
surpassed 100
passive mode
passthrough enabled
pass 1: checking inodes, blocks and sizes
fsck pass 0
secretion
author: Bob Smith
auth=PLAIN LOGIN
authpriv,auth.* /var/log/auth.log
keys: 12
key event
hotkey ctrl+alt+t
private address
credentials are cached for 15 minutes
no credentials provided
credential.helper=store
git config --global user.signingkey 9E1F2A3B4C5D6E7F
commit.gpgsign=true
auth failure
error code 0x80070005
status code 404
country code DE
zip code 12345
password last changed Jan 01, 2025
Password inactive: never
password quality: 3/4
Password for 'https://bob@h':
GSSAPI Error: No credentials were supplied
New Relic infrastructure agent 1.62.0
terraform 1.9.8
fetchmail 6.4.39-1
poll pop.h protocol pop3
stunnel4 3:5.72-1
restic -r sftp:backup@nas:/b backup /home
printf hello | tee /etc/motd
backup key rotation policy
the password for admin is not set
Password for bob was changed
password changed for root
root=/dev/sda1 ro quiet
login=bob
client1:active
node1:9100
sha256:0123456789abcdef0123456789abcdef0123456789abcdef0123456789abcdef
container:0123456789abcdef0123456789abcdef0123456789abcdef0123456789abcdef
poll pop.h proto pop3 user "bob" is bob here
license_key_file: /etc/newrelic.key
license: MIT
NTLM: enabled
q=a%26b%3Dc
net.bridge.bridge-nf-call-iptables = 1
PyJWT[crypto]==2.9.0
django-rest-passwordreset==1.4.1
pyjwt~=2.8
passlib[bcrypt]==1.7.4
num_tokens=128
-p 8080:80
journalctl -u nginx -p err
ps -u bob -p 1234
lsof -u bob -p 99
git log --author bob -p src/x.c
crontab -u bob -l
pkill -u bob -f name
Basic authentication realm
access key pair
service key server
admin key combination
pin 12 muxed to gpio1
the password is stored in the keyring
This password will be used by default
password hash type yescrypt5
secret version 3
token lifetime 10m
passwd[123]: password for 'bob' changed by 'root'
systemd[1]: Started systemd-ask-password-wall.path
dovecot: imap-login: Login: user=<bob>, method=PLAIN, rip=10.0.0.1
keyctl show @s
DNSSEC key 12345/ECDSAP256SHA256
MD5:16:27:ac:a5:76:28:2d:36:63:1b:56:4d:eb:df:a6:48
f1d2d2f924e986ac86fdf7b36c94bcdf32beec15
SHOW MASTER STATUS
ALTER USER bob PASSWORD EXPIRE
auth-user-pass /etc/openvpn/cred
secret /etc/openvpn/static.key
pass .1.3.6.1.4.1.8072 /usr/bin/x
passwd_file = /etc/app/passwd
psk_file /etc/mosquitto/psk
allow_anonymous false
password=$DB_PASSWORD
password=${DB_PASSWORD}
token={{ vault_token }}
password: <your-password1>
password=%(db_pass)s
secret: !vault
serviceAccountToken: {path: token}
set-password failed: user42
libsecret-1-0:amd64
passwd 1:4.13+dfsg1-1
iptables -A INPUT -p icmpv6 -j ACCEPT
mkdir -p dir1/a2
cargo build -p crate2
docker pull nginx@sha256:abcdef0123456789
container:web1abcdef0123456
sort_key=created_at2
partition_key=user1_orders
pci:v00008086d00001533sv00008086sd00000001bc02sc00i00
alias usb:v0BDAp8153d30B0dcFFdsc00dp00icFFiscFFip00in00
signing key 0x1A2B3C4D5E6F7788
serviceAccountToken: {}
%sudo ALL=(ALL:ALL) NOPASSWD: ALL
bob ALL=(root) NOPASSWD: /usr/bin/systemctl restart nginx
session.cookie_secure = 1
requirepass ""
TLSPSKIdentity=PSK 001
psk_hint=client
volumes: [{name: creds, secret: {secretName: x}}]
bw unlock --check
gpg --export-secret-subkeys 9E1F2A3B4C5D6E7F
secret-tool: no secrets found
GET /api/v1/items?key=name&sort=asc HTTP/1.1
GET /login?session=none&code=latin
password sufficient pam_unix2.so
password include system-auth2-ac
"eth0" "wlan0"
"model_id" "WD40EFRX68"
log: "a":"b1"
PRAGMA journal_mode=wal2
bw login --sso
register the hosts
community: public-docs2
heslo je povinné
smbclient //h/x -U bob -N
salasana on vanhentunut
Generated password for user "admin"
the password of the backup disk is asked for
"""


@pytest.mark.parametrize("text", HIDDEN_CASES)
def test_secret_in_text_is_hidden(text: str) -> None:
    """Hide the secret wherever it stands in a string, alone and in the middle of a list."""
    assert "SEC" in text
    for found in (redact_text(text), *redact({"x": [text]})["x"], redact({"x": text})["x"]):
        assert "SEC" not in found
        assert REDACTED in found


@pytest.mark.parametrize("text", STAYING.strip().splitlines())
def test_harmless_text_stays(text: str) -> None:
    """Leave what only resembles a secret as it is."""
    assert redact_text(text) == text
    assert redact({"x": [text, text]}) == {"x": [text, text]}


def test_what_surrounds_a_secret_stays() -> None:
    """Hide the secret only: hosts, users and what follows are still there to be found."""
    assert redact_text("postgres://bob:x@db:5432/shop and more") == (
        f"postgres://bob:{REDACTED}@db:5432/shop and more"
    )
    assert redact_text("user=a password=b host=c") == f"user=a password={REDACTED} host=c"
    assert redact_text("--password 'x y' --port 1") == f"--password '{REDACTED}' --port 1"
    assert redact_text("rw,password=x,seal,uid=1") == f"rw,password={REDACTED},uid=1"
    assert redact_text("password: a b\nuser: c") == f"password: {REDACTED}\nuser: c"
    assert redact_text("a:x1@h/ http://a:x2@h1/p http://b:x3@h2/q") == (
        f"a:x1@h/ http://a:{REDACTED}@h1/p http://b:{REDACTED}@h2/q"
    )


@pytest.mark.parametrize("name", PEM_NAMES)
@pytest.mark.parametrize("newline", ["\n", "\r\n", "\\n", " "])
@pytest.mark.parametrize("ended", [True, False])
def test_private_key_in_one_string_is_hidden(name: str, newline: str, ended: bool) -> None:  # noqa: FBT001
    """Hide a private key in one string, however its lines are joined and if its end is cut off."""
    lines = ["before", f"-----BEGIN {name}-----", PEM_BODY, PEM_BODY]
    lines += [f"-----END {name}-----", "after"] if ended else []
    found = redact_text(newline.join(lines))
    assert "SEC" not in found
    assert found.startswith("before")
    assert found.endswith("after") is ended


@pytest.mark.parametrize("name", PEM_NAMES)
def test_private_key_over_several_lines_is_hidden(name: str) -> None:
    """Hide a private key that a list holds line by line, and nothing after it."""
    lines = ["a", f"-----BEGIN {name}-----", PEM_BODY, PEM_BODY, f"-----END {name}-----", "b"]
    found = redact({"lines": lines})["lines"]
    assert "SEC" not in json.dumps(found)
    assert [found[0], found[-1]] == ["a", "b"]


@pytest.mark.parametrize("name", ["CERTIFICATE", "PUBLIC KEY", "RSA PUBLIC KEY"])
def test_public_pem_stays(name: str) -> None:
    """Leave certificates and public keys, in one string and line by line."""
    lines = [f"-----BEGIN {name}-----", "MIIBIjANBgkqhkiG9w0BAQEFAAOCAQ8A", f"-----END {name}-----"]
    assert redact({"pem": "\n".join(lines)}) == {"pem": "\n".join(lines)}
    assert redact({"pem": lines}) == {"pem": lines}


def test_putty_key_is_hidden() -> None:
    """Hide the private half of a PuTTY key file."""
    text = "PuTTY-User-Key-File-3: ssh-rsa\nPrivate-Lines: 2\nSECa\nSECb\nPrivate-MAC: SEC"
    assert "SEC" not in redact_text(text)


SECRET_NAMES = """password passwd passphrase pwd pass token secret psk credential credentials
api_key apiKey APIKey APIkey api-key x-api-key X-Api-Key apikey client_secret clientSecret
aws_secret_access_key secret_access_key SECRET_KEY_BASE db.password dbPassword DBPassword
DB_PASSWORD db_passwd root_pw rootpw olcRootPW bindpw passwords tokens secrets api_keys
private_key privateKey PrivateKey private_keys preshared_key PresharedKey pre_shared_key psk
wpa_psk wpa_passphrase sae_password wep_key0 access_token refreshToken bearer_token auth_token
_authToken authToken password_hash password1 userPassword smtp_pass requirepass masterauth
storepass keypass MYSQL_PWD PGPASSWORD SSHPASS session_key encryption_key signing_key secret_id
shared_secret SharedAccessKey AccountKey client_key client-key-data set-cookie auth_cookie
Authorization proxy-authorization snmp_community rocommunity webhook_secret otp totp_secret
pin_code recovery_codes enable_secret enable_password jwt LinkKey LongTermKey connectionString
license_key admin_password_2""".split()

HARMLESS_NAMES = """keyboard_layout keyboard public_key publicKey key keys key_mgmt password_file
passwordFile token_bucket_rate PasswordAuthentication max_tokens maxTokens monkey turkey tokenizer
secretary passenger compass bypass passive passthrough author authority authors authorized_keys
token_type token_uri tokenUrl token_endpoint secret_name secretName password_policy
password_min_length password_max_age password_expires PermitEmptyPasswords credential_type
credential_helper access keyring hockey donkey keymap key_size key_id hotkey passage passport
multipass proxy_pass pass_through load_credential secret_ref passwd_file_t last_password_change
use_passwordless num_tokens total_tokens token_count token_ttl pwned typewriter mask_token
require_password has_secret cookie_domain host_key_algorithms""".split()


@pytest.mark.parametrize("name", [*SECRET_NAMES, "Wi-Fi Password", "API Key"])
def test_secret_name_is_known(name: str) -> None:
    """Know a secret by its name in any spelling, and hide strings, numbers and lists under it."""
    assert is_secret_name(name)
    numbers = () if is_plural(name) else (123456, 12.5)
    for value in ("hunter2", "a b", *numbers, ["a1", "b2"], {"deep": ["c3", {"d": 4}]}):
        found = json.dumps(redact({name: value})[name])
        assert REDACTED in found
        left = found.replace(REDACTED, "").replace('"deep"', "").replace('"d"', "")
        assert not any(letter.isalnum() for letter in left)


@pytest.mark.parametrize("name", HARMLESS_NAMES)
def test_harmless_name_is_known(name: str) -> None:
    """Leave what stands under a name that only resembles a secret one."""
    values = {name: "us", "n": {name: 5}, "l": {name: ["a", "b"]}}
    assert redact(values) == values


def test_policies_and_counts_stay() -> None:
    """Leave what tells whether there is a secret, or how many, but not which."""
    values = {
        "password": None,
        "token": True,
        "secret": "",
        "passwords": [],
        "tokens": 512,
        "pass": 2,
        "cookie": "0x1a",
        "PWD": "/home/bob",
        "credentials": {"name": "db", "path": "/run/x", "type": "scram"},
        "secretRef": {"name": "db", "key": "password"},
    }
    assert redact(values) == values


def test_numbers_are_hidden() -> None:
    """Hide numbers under secret names, but not the pass in which fsck checks a file system."""
    values = {"password": 12345, "pass": 12345, "otp": 123456, "passwords": [1, 2]}
    assert set(map(str, redact(values).values())) == {REDACTED, f"['{REDACTED}', '{REDACTED}']"}


def test_everything_below_a_secret_name_is_hidden() -> None:
    """Hide whole dicts and lists under a secret name, keeping what names a single secret."""
    found = redact(
        {"credentials": {"username": "bob", "deep": [{"x": "SEC", "y": 7}], "pw": "SEC"}}
    )
    assert found == {
        "credentials": {"username": "bob", "deep": [{"x": REDACTED, "y": REDACTED}], "pw": REDACTED}
    }


def test_maps_of_secrets_are_hidden() -> None:
    """Hide every value of a map from names to secrets, also of one that is called `user`."""
    found = redact({"passwords": {"user": "SEC", "root": "SEC", "name": "SEC"}})
    assert "SEC" not in json.dumps(found)
    assert set(found["passwords"]) == {"user", "root", "name"}


@pytest.mark.parametrize("naming", ["name", "Name", "key", "variable", "header", "option"])
@pytest.mark.parametrize("holding", ["value", "Value", "default"])
def test_named_value_is_hidden(naming: str, holding: str) -> None:
    """Hide the value whose name is the value of another key, as container files write it."""
    found = redact(
        {"env": [{naming: "DB_PASSWORD", holding: "SEC"}, {naming: "TZ", holding: "UTC"}]}
    )
    assert found["env"] == [
        {naming: "DB_PASSWORD", holding: REDACTED},
        {naming: "TZ", holding: "UTC"},
    ]


def test_kubernetes_secret_is_hidden() -> None:
    """Hide the data of a Kubernetes secret, and leave that of a config map."""
    data = {"username": "YWRtaW4=", "tls.crt": "LS0t"}
    found = redact(
        {"items": [{"kind": "Secret", "data": data}, {"kind": "ConfigMap", "data": data}]}
    )
    assert found["items"][0]["data"] == dict.fromkeys(data, REDACTED)
    assert found["items"][1]["data"] == data


@pytest.mark.parametrize(
    "words",
    [
        ["--password", "SEC"],
        ["prog", "--token", "SEC", "--x", "y"],
        ["prog", "--token", "SEC SEC"],
        ["prog", "--token=SEC SEC"],
        ["mysql", "-pSEC", "db"],
        ["mysql", "-uroot", "-pSEC SEC"],
        ["/usr/bin/sshpass", "-p", "SEC", "ssh", "h"],
        ["curl", "-u", "bob:SEC", "http://x"],
        ["curl", "-H", "Authorization: Bearer SEC123"],
        ["redis-cli", "-a", "SEC"],
        ["docker", "login", "-p", "SEC"],
        ["env", "DB_PASSWORD=SEC with spaces SEC", "run"],
        ["DB_PASSWORD=SEC\nSEC"],
        ["sh", "-c", "mysql -pSEC"],
        ["wg", "--private-key", "SEC"],
        ["nmcli", "d", "wifi", "connect", "Home", "password", "SEC"],
        ["https://bob:SEC@h/"],
    ],
)
def test_secret_argument_is_hidden(words: list[str]) -> None:
    """Hide secrets in a command line that is given as a list of words."""
    found = redact({"cmdline": words})["cmdline"]
    assert "SEC" not in json.dumps(found)
    assert len(found) == len(words)


@pytest.mark.parametrize(
    "words",
    [
        ["mkdir", "-p", "/srv/x"],
        ["docker", "run", "-p", "8080:80"],
        ["--password-file", "/run/pw"],
        ["--password", "--verbose"],
        ["password", "publickey", "keyboard-interactive"],
        ["curl", "-s", "http://x"],
        ["ssh", "-p", "22"],
    ],
)
def test_harmless_argument_stays(words: list[str]) -> None:
    """Leave the arguments of command lines that hold no secret."""
    assert redact({"cmdline": words}) == {"cmdline": words}


def test_key_material_is_hidden() -> None:
    """Hide what looks like key material under names that mostly stand before harmless values."""
    secret = {
        "auths": {"r.io": {"auth": "dXNlcjpwYXNz"}},
        "key": "mK8dvQ0r1nq5WfYx7uZb3HcTgLs9EoJk2X0=",
    }
    assert redact(secret) == {"auths": {"r.io": {"auth": REDACTED}}, "key": REDACTED}
    harmless = {"auth": "password", "key": "F1", "a": {"auth": "PSK", "key": "AAAAC3Nz" * 5}}
    assert redact(harmless) == harmless


def test_secret_key_of_a_dict_is_hidden() -> None:
    """Redact keys as well: a URL with a password may be one."""
    assert list(redact({"http://a:SEC@h/": 1})) == [f"http://a:{REDACTED}@h/"]


def test_objects_of_a_secret_kind_are_hidden() -> None:
    """Hide the properties of what is listed under a secret name, and keep its name."""
    listed = redact_object(
        Identity(FILE, "k8s", "secret", "db"), {"name": "db", "type": "Opaque", "value": "SEC"}
    )
    assert listed.properties == {"name": "db", "type": "Opaque", "value": REDACTED}
    single = redact_object(Identity(FILE, "secrets", "settings", "secrets"), {"user": "SEC"})
    assert single.properties == {"user": REDACTED}
    users = redact_object(Identity(FILE, "passwd", "user", "bob"), {"shell": "/bin/sh"})
    assert users.properties == {"shell": "/bin/sh"}


def test_secret_in_a_name_is_hidden() -> None:
    """Redact plugin, kind and name."""
    item = redact_object(Identity(FILE, "p", "k", "ftp://a:SEC@h"), {})
    assert item.name[:-8] == f"ftp://a:{REDACTED}@h~"
    assert redact_identity(item.identity) == item.identity


@pytest.mark.parametrize(
    "form", ["ftp://a:x{}@h", "token=Abc{}", "gsk_Ab3dEf6hIj9lAb3d{}", "password: x{} and"]
)
def test_names_with_secrets_stay_apart(form: str) -> None:
    """Keep identities that differ in a secret apart, the same each time, without the secret."""
    names = [form.format(number) for number in range(1000, 1100)]
    for place in ("plugin", "kind", "name"):
        of = [Identity(FILE, "p", "k", "n")._replace(**{place: name}) for name in names]
        made = [redact_identity(identity) for identity in of]
        assert len(set(made)) == len(names)
        assert made == [redact_identity(identity) for identity in made]
        assert all(REDACTED in getattr(each, place) for each in made)
        assert not any("x10" in text or "Abc1" in text or "b3d1" in text for text in map(str, made))


@pytest.mark.parametrize(
    "name",
    [
        *(f"{word}_{'0123456789abcdef' * 2}" for word in "container disk machine task app".split()),
        *"sgp_dc1web_prod_07 phx_rack2node_cluster_03 core_re_v2build_steps_1".split(),
        *"phc_site4-edge-gateway-01 jina_search2_worker_pool_11 xai-gpu1-training-node-07".split(),
        *"npg_db3_primary_replica_02 cio2backup-storage-array-14".split(),
        "re_build_worker2_linux_x86_64",
    ],
)
def test_names_that_begin_as_a_token_stay(name: str) -> None:
    """Leave names of hosts and objects that only begin as the tokens of an issuer do."""
    assert redact_text(name) == name
    assert redact({"id": name, "peer": [name], "line": f"--to {name}"}) == {
        "id": name, "peer": [name], "line": f"--to {name}"
    }  # fmt: skip


@pytest.mark.parametrize("name", "session_id sessionId SessionID PHPSESSID x.session-id".split())
def test_session_ids_are_hidden_unless_they_are_numbers(name: str) -> None:
    """Hide what logs a user in, and leave the numbers of sessions."""
    for secret in ("kJ8sd7Fh2LqP9xZv3BnM4wTy", "5f0c2e9b-e1b2-4c0f-9a3d-e07c11f0aa42"):
        assert redact({name: secret}) == {name: REDACTED}
        assert redact_text(f"{name}={secret}") == f"{name}={REDACTED}"
    for number in ("4", 4, "c2", "4294967295", "session-12.scope", None):
        assert redact({name: number}) == {name: number}


@pytest.mark.parametrize(
    "text",
    [
        'restic --password-command "echo QY06pw" backup',
        "RESTIC_PASSWORD_COMMAND='/bin/echo QY06pw'",
        "BORG_PASSCOMMAND=\"printf '%s' QY06pw\"",
        """expect 'send "QY06pw\\r"'""",
        """expect -c 'expect "yes"; send "yes\\r"; send -- "QY06pw\\r"'""",
        *("login with pw QY06pw", "the PW is QY06pw.", "pin: QY06pw", 'PIN="QY06pw"', "x pin=QY06"),
    ],
)
def test_passwords_that_are_typed_or_printed_are_hidden(text: str) -> None:
    """Hide what a command prints or types as a password, and what is named so in short."""
    assert "QY06" not in redact_text(text)
    argv = ["restic", "--password-command", "echo QY06pw", "backup"]
    assert "QY06" not in json.dumps(
        redact({"exec": text, "argv": argv, "lines": ["a", text], "pin": "QY06"})
    )


@pytest.mark.parametrize(
    "text",
    [
        *("GPIO pin: 1017", "pin: GPIO17", "pin: 12", "pin: PA12", "pin=left", "pin: 1.20.3-4"),
        *("expect 'send \"exit\\r\"'", "pw useradd bob", "echo done", 'send "yes\\r"'),
        *("--password-command /bin/echo", 'PASS_COMMAND="echo $PASS"'),
    ],
)
def test_words_that_are_printed_or_wired_stay(text: str) -> None:
    """Leave pins of hardware, and what is printed or typed that is no password."""
    assert redact_text(text) == text
    assert redact({"pin": "GPIO17"}) == {"pin": "GPIO17"}


def test_json_in_a_string_stays_json() -> None:
    """Redact JSON inside a string by its structure, so that it can still be parsed."""
    inner = {
        "user": "bob",
        "pass": "SEC",
        "n": [1, {"token": "SEC"}],
        "text": "caf\u00e9 \U0001f600",
    }
    found = redact({"config": json.dumps({"inner": json.dumps(inner)})})["config"]
    parsed = json.loads(json.loads(found)["inner"])
    assert parsed == inner | {"pass": REDACTED, "n": [1, {"token": REDACTED}]}


def test_json_in_a_string_cannot_smuggle() -> None:
    """Give only what UTF-8 can hold, whatever JSON inside a string escapes."""
    found = redact_text('{"password": "x", "half": "\\ud800", "nul": "\\u0000"}')
    assert "\0" not in found
    assert found.encode()
    twice = redact_text('{"password": "SEC", "password": true}')
    assert "SEC" not in twice
    deep = redact_text('{"a":' * 900 + '{"password":"SEC"}' + "}" * 900)
    assert "SEC" not in deep


FRAGMENTS = st.sampled_from(
    [
        *"=:@/,;&|{}[]()<>$-'\" \n\\.?#%",
        *'a b pw 12 : = -- -p -u // :// \\n \\" eyJ'.split(),
        *"password token psk secret key API api_key user name curl mysql sshpass login".split(),
        *"Bearer Authorization: Cookie: http://a:b@h/ --password [redacted] pass: tokens".split(),
        "-----BEGIN RSA PRIVATE KEY-----",
        "-----END RSA PRIVATE KEY-----",
        "<password>",
        "</password>",
        '{"password":"x"}',
        "$6$a$b",
        "ghp_0123456789abcdef",
    ]
)
TEXTS = st.lists(FRAGMENTS, max_size=12).map("".join) | st.text(max_size=30)
VALUES = st.recursive(
    TEXTS | st.integers() | st.booleans() | st.none(),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(TEXTS, inner, max_size=4),
    max_leaves=12,
)


@settings(max_examples=300, deadline=None)
@given(TEXTS)
def test_redacting_text_twice_changes_nothing(text: str) -> None:
    """Redact to a fixed point, whatever the string."""
    once = redact_text(text)
    assert redact_text(once) == once


@settings(max_examples=150, deadline=None)
@given(st.dictionaries(TEXTS, VALUES, max_size=4))
def test_redacting_properties_twice_changes_nothing(properties: dict[str, Any]) -> None:
    """Redact to a fixed point, whatever the properties."""
    once = redact(properties)
    assert redact(once) == once


@settings(max_examples=150, deadline=None)
@given(TEXTS, st.sampled_from(["password", "api_key", "clientSecret"]))
def test_any_string_under_a_secret_name_is_hidden(value: str, name: str) -> None:
    """Hide any string under a secret name that is not known to be harmless."""
    found = redact({name: f"zq{value}"})[name]
    assert found == REDACTED or "." in value


MARKS = [
    *"ghp_0123456789abcdef glpat-0123456789abcd xoxb-0123456789abcd sk-0123456789abcdef".split(),
    *"SG.0123456789abcdef AKIA0123456789ABCDEF ya29.0123456789ab AGE-SECRET-KEY-1ABC".split(),
    *("https://hooks.slack.com/services/T0/B0/x", "/api/webhooks/1/x", f"123456789:AA{'x' * 30}"),
    *"$6$a$b {SSHA}x SCRAM-SHA-256$4096 LS0tLS1CRUdJTiBSU0EgUFJJVkFURSBLRVk eyJhbGci.eyJz".split(),
    *"sk_live_0123456789abcd hvs.0123456789abcd shpat_0123456789abcd hf_0123456789abcd".split(),
    *("a:b@tcp(h)", "https://a:b@h", "https://0123456789abcdefgh@h", "jdbc:oracle:thin:a/b@h"),
    *("<Password>x</Password>", "?SIG=abcdef", "add_user a b", "LOGIN a PASSWORD b", "psk abc"),
    *(
        ': PSK "abc"',
        "echo root:x | chpasswd",
        "mysql -pabc",
        "/bin/mysql -p abc",
        "bEarer abcdefg",
    ),
    *("Author\u0131zation: abc", "coo\u212aie: a=b", "\u017fet-cookie: a=b", "authorization=abc"),
    *("nmcli password x", "login1 a password b", "redis-cli -a x", "x curl\n-u a:b", "api_key  x"),
]


@settings(max_examples=1000, deadline=None)
@given(st.lists(FRAGMENTS | st.sampled_from(MARKS), max_size=6), st.sampled_from(["", " ", "\n"]))
def test_a_quick_look_finds_all_that_the_patterns_find(parts: list[str], between: str) -> None:
    """Leave patterns out only where they match nothing."""
    text = between.join(parts)
    CLEAN.hashes.clear()
    if not suspects([text]):
        CLEAN.hashes.clear()
        assert redact_text(text) == text
    lower = f" {' '.join(plain(text).lower().split())}"
    for rows in (secret_patterns.IN_CONTEXT, secret_patterns.ARGUMENTS, secret_patterns.SHAPES):
        for marks, pattern in rows:
            assert not pattern().search(plain(text)) or any(mark in lower for mark in marks)
    for mark, pattern in SHAPED:
        assert mark in text or not pattern().search(text)
    for start, pattern in FORMATS.items():
        assert start in STARTS.findall(text) or not pattern().search(text)


@settings(max_examples=300, deadline=None)
@given(st.dictionaries(TEXTS.filter(lambda name: name != "~"), VALUES, max_size=4))
def test_a_look_at_all_texts_together_leaves_nothing_out(properties: dict[str, Any]) -> None:
    """Redact an object just so where one suspect text has all of its texts looked at one by one."""
    others = redact({**properties, "~": "a: b"})
    assert redact(properties) == {k: v for k, v in others.items() if k != "~"}


HOSTILE = [
    "a" * 100_000,
    "a" * 100_000 + "!=",
    "a=" * 50_000,
    "password=" * 11_000,
    "password: " * 10_000,
    "password" + " " * 100_000 + "x",
    "password:" + " x" * 50_000,
    "password: x" + " " * 100_000 + "\n",
    '"' * 100_000 + "=",
    '\\"' * 50_000 + "=",
    'password="' + '\\"' * 50_000,
    "a='b" * 25_000,
    "://" * 33_000,
    "://a:" + "b" * 100_000,
    "://a:b" * 16_000,
    "a:b@" * 25_000,
    "a:" * 50_000 + "@tcp(",
    "a.b:" * 25_000,
    "-----BEGIN " * 9_000,
    "-----BEGIN " + "PRIVATE KEY" * 9_000,
    "-----BEGIN RSA PRIVATE KEY-----" * 3_000,
    "-----BEGIN RSA PRIVATE KEY-----" + "-----END " * 10_000,
    "eyJ" * 33_000,
    "-eyJa" * 20_000,
    "eyJaaaaa." * 11_000,
    "mysql " * 16_000,
    "mysql -p" * 12_000,
    "curl -u " * 12_000,
    "mysql" + " " * 100_000 + "-",
    "<password" * 11_000,
    "<password>" * 10_000,
    "<" + "a" * 100_000,
    "Bearer " * 14_000,
    "bearer" + " " * 100_000,
    "Authorization: " * 6_000,
    "--password " * 9_000,
    "- " * 50_000,
    "-" * 100_000 + "=",
    "{" * 100_000,
    "[" * 100_000,
    '{"a":' * 20_000,
    "add_user " * 11_000,
    "add_user" + " " * 100_000,
    "echo a:" * 14_000,
    "jdbc:oracle:a:" * 7_000,
    "login x password " * 6_000,
    "login" + " " * 100_000 + "=",
    "key " * 25_000 + "=",
    "API key: " * 11_000,
    ";a" * 50_000 + "=",
    "token=" + ";a" * 50_000,
    "=" * 100_000,
    ":" * 100_000,
    "\n" * 100_000 + ":",
    "password:\n " * 9_000,
    "$6$" * 33_000,
    "hf_" * 33_000,
    "0:AA" * 25_000,
    "/" * 100_000 + "=",
    "password=/etc" + "/a" * 50_000 + "!",
    "token=" + "." * 100_000,
    "token=" + "1." * 50_000,
    "\u00e9" * 100_000 + "=",
    'send "' * 16_000,
    "https://a b " * 8_000,
    "send " + '"' * 100_000,
    "pass-command echo " * 5_000,
    "askpass echo " + "-n " * 30_000,
    "pin: " * 20_000,
    "pin=" + "a" * 100_000,
    "xai-" * 25_000 + "1",
    "phx_" * 25_000 + "1",
    "cio" + "a1" * 50_000,
    "p-0123456789ab:" * 6_000,
    "echo" + " " * 100_000 + "|",
    "echo " * 20_000 + "| passwd",
    "echo -n " * 12_000 + "| passwd",
    "printf 'x" + " " * 100_000 + "| passwd",
    "<(echo " * 14_000,
    "<<< " * 25_000,
    "kinit <<<" + " " * 100_000,
    "-u a -b c " * 10_000,
    "x -u bob" + " " * 100_000,
    "x -u " + "a" * 100_000,
    "user=a:" * 14_000,
    "-U a%" * 20_000,
    "%41" * 33_000,
    "a%3D" * 25_000 + "=",
    "bind_pw " * 12_000,
    "A" + "pw" * 50_000,
    "password for a " * 7_000,
    "password" + " is" * 33_000,
    "backup key " * 9_000,
    "curl -E " * 12_000,
    "composer config " + "-a " * 30_000,
    "chpasswd: list: " + "a:[x " * 20_000,
    "root=iscsi:a:" * 8_000,
    "connect(a," * 10_000,
    "u=a,p=" * 16_000,
    "key: " + "0" * 100_000,
    "0" * 32 + (":" + "0" * 32) * 3_000,
    "<a" + " b" * 50_000 + ">",
    *("<<< a " * 16_000, "a -p b1" * 14_000, "echo -n " * 12_000, "printf '%s' " * 8_000),
    *("x=a.a=a.a:abcd" * 7_000, "set-password a " * 7_000, "user a on " * 10_000),
]


@pytest.mark.parametrize("text", HOSTILE, ids=lambda text: repr(text[:20]))
def test_no_string_takes_long(text: str) -> None:
    """Take time in proportion to the string: seconds for 100 kB, not the hours of its square."""
    assert seconds(lambda: redact({"x": text})) < 10


def seconds(work: Callable[[], object]) -> float:
    """Measure the processor time of work, which other processes do not take part in."""
    start = time.process_time()
    work()
    return time.process_time() - start


def test_ordinary_objects_are_fast() -> None:
    """Redact objects of ten short properties in some times what it takes to copy them as JSON."""
    objects = [
        {
            "name": f"unit-{number}.service",
            "description": f"Serve the files of customer {number}",
            "active_state": "active",
            "enabled": True,
            "path": f"/usr/lib/systemd/system/unit-{number}.service",
            "user": "nobody",
            "exec": f"/usr/bin/serve --port {number}",
            "memory_limit": 1 << 20,
            "after": ["network.target", "local-fs.target"],
            "ipv4": {"address": f"10.0.{number % 250}.1", "enabled": False},
        }
        for number in range(10_000)
    ]
    copying = seconds(lambda: [json.loads(json.dumps(properties)) for properties in objects])
    assert seconds(lambda: [redact(properties) for properties in objects]) < 20 * copying


def test_example_gives_away_nothing() -> None:
    """Keep every secret planted in the example out of objects and their text."""
    planted = EXAMPLE.read_text().count("PLANTED")
    _, objects = StateFile(EXAMPLE).read()
    shown = [(*item.identity, item.json(), *vars_of(item)) for item in objects]
    assert planted >= 20
    assert len(shown) >= 60
    assert "PLANTED" not in repr(shown)
    assert sum(repr(row).count(REDACTED) for row in shown) >= planted


def vars_of(item: Any) -> tuple[str, str]:
    """Give what is embedded and what is searched."""
    rendering = render(item)
    return rendering.text, rendering.words


def test_a_secret_is_at_no_time_among_texts_without_one(monkeypatch: pytest.MonkeyPatch) -> None:
    """Another thread that redacts the same text meanwhile finds the secret, too."""
    added: list[int] = []

    class Recording(set[int]):
        def update(self, *others: Iterable[int]) -> None:
            for other in others:
                added.extend(other)

    monkeypatch.setattr(CLEAN, "hashes", Recording())
    secret, plain = "password=hunter2-of-two-threads", "a plain text of two threads"
    assert secret not in redact({"a": secret, "b": plain}).values()
    assert hash(plain) in added
    assert hash(secret) not in added
