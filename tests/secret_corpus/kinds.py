# ruff: noqa: E501, RUF001 -- a row of a table each, in all scripts
"""Kinds of secrets as templates, one a line; the values are made at run time.

`{A36}` stands for 36 random characters of a class (see `CLASSES`), `{p}` for a password that a
person made up. Only what stands in braces is secret.
"""

import random
import re
import string
from typing import Final, NamedTuple

CLASSES: Final = {
    "A": string.ascii_letters + string.digits,
    "a": string.ascii_lowercase + string.digits,
    "U": string.ascii_uppercase + string.digits,
    "l": string.ascii_lowercase,
    "L": string.ascii_uppercase,
    "h": "0123456789abcdef",
    "H": "0123456789ABCDEF",
    "B": string.ascii_letters + string.digits + "+/",
    "W": string.ascii_letters + string.digits + "-_",
    "C": string.ascii_letters + string.digits + "./",
    "d": string.digits,
    "2": string.ascii_uppercase + "234567",
    "z": "qpzry9x8gf2tvdw0s3jn54khce6mua7l".upper(),
}
_PART: Final = re.compile(r"\{([A-Za-z2])(\d*)\}")

# Words that are secrets by themselves, wherever they stand.
TOKENS: Final = """
groq | gsk_{A52}
xai | xai-{A80}
perplexity | pplx-{A48}
databricks | dapi{h32}
digitalocean-pat | dop_v1_{h64}
digitalocean-oauth | doo_v1_{h64}
digitalocean-refresh | dor_v1_{h64}
supabase-personal | sbp_{h40}
supabase-secret | sb_secret_{W31}
google-oauth-client | GOCSPX-{W28}
google-api | AIza{W35}
google-oauth-access | ya29.{W120}
google-refresh | 1//0{W64}
firebase-messaging | {A11}:APA91b{W134}
atlassian-api | ATATT3x{W180}
atlassian-scoped | ATCTT3x{W180}
bitbucket-app | ATBB{A32}
sentry-org | sntrys_eyJpYXQiOjE3{A120}_{A43}
newrelic-user | NRAK-{U27}
newrelic-insert | NRII-{A32}
newrelic-license | {h36}NRAL
newrelic-browser | NRJS-{h19}
grafana-service | glsa_{A32}_{h8}
grafana-cloud | glc_eyJvIjoi{A100}=
grafana-old | eyJrIjoi{A70}
notion | ntn_{d11}{A35}
notion-old | secret_{A43}
linear | lin_api_{A40}
github-pat | ghp_{A36}
github-fine | github_pat_{A22}_{A59}
github-oauth | gho_{A36}
github-server | ghs_{A36}
github-refresh | ghr_{A36}
gitlab-pat | glpat-{W20}
gitlab-deploy | gldt-{W20}
gitlab-runner | glrt-{W20}
gitlab-feed | glft-{W20}
gitlab-old-runner | GR1348941{W20}
slack-bot | xoxb-{d12}-{d12}-{A24}
slack-app | xapp-1-A0{U9}-{d13}-{h64}
slack-hook | https://hooks.slack.com/services/T0{U8}/B0{U8}/{A24}
stripe-live | sk_live_{A24}
stripe-restricted | rk_live_{A99}
stripe-hook | whsec_{A32}
twilio-key | SK{h32}
sendgrid | SG.{W22}.{W43}
mailgun | key-{h32}
mailgun-new | {h32}-{h8}-{h8}
mailchimp | {h32}-us14
mandrill | md-{W22}
postmark-like | pm-{A36}
brevo | xkeysib-{h64}-{A16}
brevo-smtp | xsmtpsib-{h64}-{A16}
resend | re_{A8}_{A24}
npm | npm_{A36}
pypi | pypi-AgEIcHlwaS5vcmc{W150}
testpypi | pypi-AgENdGVzdC5weXBpLm9yZw{W150}
rubygems | rubygems_{h48}
crates | cio{A32}
nuget | oy2{a43}
docker-pat | dckr_pat_{W27}
huggingface | hf_{A34}
huggingface-org | api_org_{A34}
openai | sk-{A20}T3BlbkFJ{A20}
anthropic | sk-ant-api03-{W93}AA
openrouter | sk-or-v1-{h64}
deepseek | sk-{h32}
replicate | r8_{A37}
mistral | {A32}
cohere | {A40}
together | tgp_v1_{W43}
fireworks | fw_{A24}
elevenlabs | sk_{h48}
assembly-like | aai_{A40}
langsmith | lsv2_pt_{h32}_{h10}
langfuse | sk-lf-{h8}-{h4}-{h4}-{h4}-{h12}
pinecone | pcsk_{A6}_{A63}
nvidia | nvapi-{W64}
tavily | tvly-{A32}
voyage | pa-{W43}
aws-access | AKIA{2}
aws-session-id | ASIA{2}
aws-secret | {B40}
aws-bedrock | ABSKQmVkcm9ja0FQSUtleS{B108}
azure-client-secret | {A3}8Q~{W34}
heroku | HRKU-AA{W58}
fly | FlyV1 fm2_{B120}
fly-old | fo1_{W43}
vercel | vcp_{A56}
vercel-old | {A24}
netlify | nfp_{A40}
cloudflare-token | {W40}
cloudflare-ca | v1.0-{h24}-{h146}
cloudflare-new | cfut_{A40}
fastly | {W32}
hetzner | {A64}
vultr | {U36}
scaleway-access | SCW{U17}
planetscale-password | pscale_pw_{W43}
neon | napi_{a64}
neon-password | npg_{A12}
prefect | pnu_{A36}
pulumi | pul-{h40}
terraform | {A14}.atlasv1.{A67}
vault-service | hvs.{W90}
vault-batch | hvb.{W138}
vault-old | s.{A24}
consul-like | {h8}-{h4}-{h4}-{h4}-{h12}:{A24}
nomad-workload | nwi_{A40}
doppler | dp.pt.{A43}
onepassword | ops_eyJ{A250}
onepassword-secret | A3-{U6}-{U11}-{U5}-{U5}-{U5}
infisical | st.{h24}.{h32}.{h32}
akeyless | p-{a12}:{B44}
datadog-app | ddapp_{A34}
dynatrace | dt0c01.{2}.{U64}
splunk-like | spl_{A48}
honeycomb | hcaik_{a58}
honeycomb-ingest | hcxik_{a58}
logfire | pylf_v1_us_{A43}
posthog | phx_{A43}
posthog-project | phc_{A43}
mixpanel-like | mp_{A32}
segment | sgp_{A64}
rollbar-like | rb_{h32}
pagerduty | pdus+{W20}
pagerduty-old | u+{W18}
opsgenie-like | og_{h36}
telegram | {d10}:AA{W33}
discord-bot | MT{A24}.G{A5}.{W38}
discord-hook | https://discord.com/api/webhooks/{d18}/{W68}
teams-hook | https://example.webhook.office.com/webhookb2/{h8}-{h4}-{h4}-{h4}-{h12}@{h8}-{h4}-{h4}-{h4}-{h12}/IncomingWebhook/{h32}/{h8}-{h4}-{h4}-{h4}-{h12}
matrix | syt_{A16}_{A20}_{A6}
matrix-mas | mat_{A30}_{A6}
mattermost | {a26}
airtable | pat{A14}.{h64}
airtable-old | key{A14}
shopify | shpat_{h32}
square | EAAA{W60}
square-old | sq0csp-{W43}
paypal | access_token$production${a16}${h32}
plaid | access-production-{h8}-{h4}-{h4}-{h4}-{h12}
okta | 00{W40}
auth0 | {W64}
dropbox | sl.{W140}
facebook | EAACEdEose0cBA{A120}
twitter-bearer | AAAAAAAAAAAAAAAAAAAAA{A30}%3D{A50}
twitter-access | {d19}-{A40}
linkedin | WPL_AP1.{A16}.{B8}==
instagram | IGQV{A140}
mapbox-secret | sk.eyJ1Ijoi{A60}.{W22}
mapbox-temp | tk.eyJ1Ijoi{A60}.{W22}
algolia-like | {h32}{A10}
artifactory | AKCp{A69}
artifactory-ref | cmVmdGtuOj{A54}
sonarqube | squ_{h40}
sonarqube-project | sqp_{h40}
sonarqube-global | sqa_{h40}
circleci | CCIPAT_{A22}_{h40}
buildkite | bkua_{h40}
buildkite-agent | bkct_{A40}
travis-like | {W22}
jfrog-identity | eyJ2ZXIi{W60}.{W120}.{W86}
typeform | tfp_{W44}_{W14}
figma | figd_{W40}
asana | 2/{d16}/{d16}:{h32}
clickup | pk_{d8}_{U32}
postman | PMAK-{h24}-{h34}
intercom-like | dG9rO{B56}=
contentful | CFPAT-{W43}
dato | {h30}{A10}
hubspot | pat-na1-{h8}-{h4}-{h4}-{h4}-{h12}
zendesk-like | zd_{A40}
zoho | 1000.{h32}.{h32}
salesforce | 00D{A12}!{C96}
adobe | p8e-{a32}
alibaba | LTAI{A20}
tencent | AKID{A32}
yandex-iam | t1.{A40}.{W86}
yandex-api | AQVN{W36}
lokalise-like | lk_{h40}
frameio | fio-u-{W64}
duffel | duffel_live_{W43}
easypost | EZAK{A54}
shippo | shippo_live_{h40}
flutterwave | FLWSECK-{h32}-X
readme | rdme_{a70}
sendinblue-like | sib_{A40}
sourcegraph | sgp_{h16}_{h40}
defined | dnkey-{W26}-{W52}
tailscale | tskey-auth-{A17}-{A32}
zerotier | {A32}
ngrok | 2{A26}_{A21}
cloudflared | eyJhIjoi{A160}
netbird | nbp_{A36}
jwt | eyJhbGciOiJIUzI1NiJ9.eyJzdWIiOi{W40}.{W43}
jwe | eyJhbGciOiJSU0EtT0FFUCJ9.{W120}.{W16}.{W60}.{W22}
kubernetes-bootstrap | {a6}.{a16}
kubernetes-sa | eyJhbGciOiJSUzI1NiIs{W20}.eyJpc3MiOiJrdWJlcm5ldGVz{W90}.{W342}
docker-swarm | SWMTKN-1-{a50}-{a25}
wireguard-key | {B43}=
age-key | AGE-SECRET-KEY-1{z58}
nostr | nsec1{a58}
bitcoin-wif | 5H{A49}
bitcoin-xprv | xprv9s21ZrQH143K{A95}
ethereum-like | 0x{h64}:{A32}
borg-like | {W48}
keytab | BQIAAA{B120}==
pkcs8-der | MIIEvQIBADANBgkqhkiG9w0BAQEFAASC{B180}
pkcs1-der | MIIEpAIBAAKCAQEA{B180}
ec-der | MHcCAQEEI{B150}==
pem-base64 | LS0tLS1CRUdJTiBSU0EgUFJJVkFURSBLRVktLS0tLQ{B160}
openssh-body | b3BlbnNzaC1rZXktdjEAAAAA{B180}
ansible-vault-body | $ANSIBLE_VAULT;1.1;AES256 {d80}
bcrypt | $2b$12${C53}
yescrypt | $y$j9T${C22}${C43}
sha512-crypt | $6${C16}${C86}
sha256-crypt | $5${C16}${C43}
md5-crypt | $1${C8}${C22}
apr1 | $apr1${C8}${C22}
argon2id | $argon2id$v=19$m=65536,t=3,p=4${B22}${B43}
scrypt-crypt | $7$C6..../....{C22}${C43}
pbkdf2-django | pbkdf2_sha256$600000${A22}${B43}=
pbkdf2-grub | grub.pbkdf2.sha512.10000.{H64}.{H64}
ssha | {SSHA}{B32}
ldap-crypt | {CRYPT}{C13}
scram | SCRAM-SHA-256$4096:{B22}==${B43}=:{B43}=
postgres-md5 | md5{h32}
mysql-native | *{H40}
mysql-sha2 | $A$005${C20}{C43}
phpass | $P$B{C30}
drupal | $S$D{C51}
kea-like | {A28}
random-20 | {A20}
high-entropy-48 | {B48}
"""

# Text around which shows that something is a secret.
PHRASES: Final = """
sql-alter | ALTER USER shop WITH PASSWORD '{p}'
pgpass | db.example.net:5432:shop:web:{p}
chap | isp * {p} *
pap | bob pptpd {p} *
op-style | tool -1_password {p} run
one-dash | tool -password {p} run
words-password | net-device user admin password {p}
cisco-7 | username admin password 7 {H24}
bgp | neighbor 192.0.2.1 password {p}
isakmp | crypto isakmp key {p} address 192.0.2.9
juniper | set system root-authentication plain-text-password-value {p}
htpasswd | htpasswd -b /etc/nginx/users bob {p}
shadow | bob:$y$j9T${C22}${C43}:19700:0:99999:7:::
pwdump | bob:1001:{h32}:{h32}:::
ntlm | NTLM hash {h32}
mysql-p | mysql -u root -p{p} shop
mysqldump | /usr/bin/mysqldump -uroot -p{p} --all-databases
mysqladmin | mysqladmin -u root password {p}
sshpass | sshpass -p {p} ssh bob@host
curl-u | curl -u bob:{p} https://example.com
wget | wget --user=bob --password={p} https://example.com
openssl-pass | openssl rsa -in k.pem -passin pass:{p}
expect-send | expect -c 'spawn ssh h; expect "assword:"; send "{p}\\r"'
chpasswd | echo 'bob:{p}' | chpasswd
passwd-stdin | echo {p} | passwd --stdin bob
sudo-stdin | echo '{p}' | sudo -S reboot
luks-stdin | echo -n {p} | cryptsetup luksOpen /dev/sda2 data -
useradd | useradd -m -p {C13} bob
usermod | usermod --password {p} bob
smbclient | smbclient //nas/x -U bob%{p}
cifs | mount -t cifs //nas/x /mnt -o username=bob,password={p},vers=3.0
rsync | RSYNC_PASSWORD={p} rsync -a bob@h::m /srv
lftp | lftp -u bob,{p} sftp://h
ftp-url | ftp://bob:{p}@ftp.example.com/
http-url | https://bob:{p}@git.example.com/r.git
proxy | http_proxy=http://bob:{p}@proxy.example.com:3128/
socks | ALL_PROXY=socks5h://bob:{p}@10.0.0.1:1080
postgres-url | postgresql://bob:{p}@db.example.com/shop
mongo-srv | mongodb+srv://bob:{p}@cluster0.ab1cd.mongodb.net/x
redis-url | redis://default:{p}@cache:6379/0
amqp | amqp://bob:{p}@rabbit:5672/vh
ldap-url | ldaps://cn=admin:{p}@ldap.example.com
smtp-url | smtps://bob%40example.com:{p}@mail.example.com:465
postfix-sasl | [mail.example.com]:587 bob:{p}
netrc | machine api.example.com login bob password {p}
git-credentials | https://bob:{A36}@github.example.com
docker-login | docker login -u bob -p {p} registry.example.com
helm | helm install x y --set auth.password={p}
kubectl-literal | kubectl create secret generic db --from-literal=password={p}
vault-login | vault login {p}
aws-configure | aws configure set aws_secret_access_key {B40}
az-login | az login --service-principal -u x -p {p} --tenant t
azure-storage | DefaultEndpointsProtocol=https;AccountName=x;AccountKey={B86}==;EndpointSuffix=core.windows.net
gcs-signed | https://storage.googleapis.com/b/o?GoogleAccessId=x&Expires=1&Signature={B80}
cloudfront | https://d1.cloudfront.net/x?Expires=1&Signature={W80}&Key-Pair-Id=K1
url-token | https://hooks.example.com/alert?token={A32}
sqlserver | Server=db;Database=x;User Id=sa;Password={p};Encrypt=true
odbc | Driver=PostgreSQL;Server=db;Uid=bob;Pwd={p};
jdbc | jdbc:mysql://db/x?user=bob&password={p}
sqlplus | sqlplus scott/{p}@orcl
go-dsn | bob:{p}@tcp(127.0.0.1:3306)/x
snmpwalk | snmpwalk -v2c -c {p} 192.0.2.1
snmpv3 | snmpget -v3 -u bob -A {p} -X {p} 192.0.2.1
snmp-create | createUser bob SHA "{p}" AES "{p}"
snmpd | rocommunity {p} 10.0.0.0/8
ipmitool | ipmitool -H h -U admin -P {p} power status
redfish | racadm set iDRAC.Users.2.Password {p}
ipsec | %any %any : PSK "{p}"
wpa | wpa_passphrase Home {p}
hostapd | wpa_passphrase={p}
iw-key | iw dev wlan0 connect Home key 0:{p}
iwconfig | iwconfig wlan0 key s:{p}
nmcli | nmcli device wifi connect Home password {p}
wg-conf | PrivateKey = {B43}=
otpauth | otpauth://totp/Example:bob?secret={2}&issuer=Example
sops | sops: ENC[AES256_GCM,data:{B24},iv:{B43}=,tag:{B22}==,type:str]
restic | RESTIC_PASSWORD={p} restic -r /srv backup /etc
borg | BORG_PASSPHRASE='{p}' borg create ::a /etc
duplicity | PASSPHRASE={p} duplicity /etc file:///b
rclone | rclone config create x sftp pass {p}
gpg | gpg --batch --passphrase {p} -d a.gpg
ssh-keygen | ssh-keygen -t ed25519 -N {p} -f k
keytool | keytool -list -keystore k -storepass {p}
zip | zip -P {p} a.zip b
sevenzip | 7z a -p{p} a.7z b
rar | rar a -hp{p} a.rar b
qpdf | qpdf --encrypt {p} {p} 256 -- a.pdf b.pdf
pdftk | pdftk a.pdf output b.pdf user_pw {p}
mosquitto | mosquitto_pub -u bob -P {p} -t x -m y
rabbit | rabbitmqctl add_user bob {p}
ejabberd | ejabberdctl register bob example.com {p}
prosody | prosodyctl register bob example.com {p}
samba-tool | samba-tool user create bob {p}
net-user | net user bob {p} /add
kinit | echo {p} | kinit bob@EXAMPLE.COM
ktutil | addent -password -p bob@X -k 1 -e aes256-cts {p}
slappasswd | slappasswd -s {p}
doveadm | doveadm pw -s SHA512-CRYPT -p {p}
caddy | caddy hash-password --plaintext {p}
mkpasswd | mkpasswd -m sha-512 {p}
grafana-cli | grafana-cli admin reset-admin-password {p}
sqlcmd | sqlcmd -S db -U sa -P {p}
cqlsh | cqlsh -u bob -p {p} host
influx | influx -username bob -password {p}
db2 | db2 connect to shop user bob using {p}
memcached | bob:{p}@memcache.example.com:11211
rdesktop | rdesktop -u bob -p {p} host
xfreerdp | xfreerdp /u:bob /p:{p} /v:h
x11vnc | x11vnc -passwd {p} -display :0
mail-auth | AUTH PLAIN {B32}
imap-login | a1 LOGIN bob {p}
basic-header | Authorization: Basic {B24}=
bearer | authorization: Bearer {A40}
cookie | Cookie: sessionid={a32}; csrftoken={A64}
set-cookie | Set-Cookie: sid={A40}; HttpOnly; Secure
yaml-password | db: { user: bob, pass: "{p}" }
toml-token | token = "{A40}"
ini-password | admin_password = {p}
php-define | define( 'DB_PASSWORD', '{p}' );
python-kw | connect(host="db", user="bob", passwd="{p}")
ruby | :password => "{p}",
java-prop | spring.datasource.password={p}
xml-element | <password>{p}</password>
maven | <server><id>x</id><username>bob</username><password>{p}</password></server>
log-line | login ok for bob with password={p} from 10.0.0.1
sentence | The password is {p} until Friday.
german | Das Passwort lautet {p} bis Freitag.
npmrc | //npm.example.org/:_authToken={A36}
pip-conf | index-url = https://bob:{p}@pypi.example.com/simple
yarnrc | npmAuthToken: "{A36}"
composer | {"http-basic": {"repo.example.com": {"username": "bob", "password": "{p}"}}}
kubeconfig | client-key-data: {B120}==
service-account | {"type": "service_account", "private_key_id": "7", "private_key": "{B80}"}
gcp-adc | {"client_secret": "{W24}", "refresh_token": "1//0{W64}", "type": "authorized_user"}
terraform-var | terraform apply -var db_password={p}
ansible-var | ansible-playbook x.yml -e ansible_become_pass={p}
puppet | mysql::db { 'x': user => 'a', password => '{p}' }
salt | - password: {p}
credential-setcred | SetCredential=db.password:{p}
radius | client 10.0.0.1 { secret = {p} }
tsig | key "k" { algorithm hmac-sha256; secret "{B43}="; };
rndc | rndc-confgen-key secret "{B24}"
ceph | key = AQ{B36}==
iscsi | node.session.auth.password = {p}
corosync | authkey {B64}
keepalived | auth_pass {p}
vrrp | authentication { auth_type PASS auth_pass {p} }
openvpn-static | -----BEGIN OpenVPN Static key V1----- {h64} -----END OpenVPN Static key V1-----
pem-one-line | -----BEGIN RSA PRIVATE KEY----- {B64} {B64} -----END RSA PRIVATE KEY-----
pgp-one-line | -----BEGIN PGP PRIVATE KEY BLOCK-----\\n\\n{B64}\\n{B64}\\n-----END PGP PRIVATE KEY BLOCK-----
putty-mac | Private-Lines: 1 {B64}
asterisk | secret={p}
zabbix-psk | TLSPSK={h64}
grub-user | password root {p}
preseed | d-i passwd/root-password password {p}
kickstart | rootpw --plaintext {p}
unattend | chpasswd: { list: "root:{p}" }
tor-hash | HashedControlPassword 16:{H58}
squid-digest | bob:Realm:{h32}
nginx-header | proxy_set_header Authorization "Basic {B24}=";
apache-env | SetEnv DB_PASSWORD {p}
dovecot-passdb | bob:{PLAIN}{p}
exim-login | * : bob : {p}
fetchmail | poll mail.example.com user bob pass {p}
msmtp | account x host h user bob password {p}
davfs | https://dav.example.com bob {p}
s3fs-passwd | AKIA{2}:{B40}
crypttab-key | data /dev/sda2 none luks,passphrase={p}
murmur | serverpassword={p}
minecraft | rcon.password={p}
mysqld-p | mysqld -p{p} --user=mysql
mysqlsh-p | mysqlsh -u bob -p{p} --sql
mysqlcheck | mysqlcheck -u root -p{p} --all-databases
mysqlshow | mysqlshow -u root -p{p}
mysqlslap | mysqlslap --user=root -p{p} --concurrency=5
mysqlbinlog | mysqlbinlog -u repl -p{p} binlog.000001
mariabackup-p | mariabackup --backup -u root -p{p}
mydumper | mydumper -u bob -p {p} -o /b
pt-tool | pt-table-checksum h=db1,u=bob,p={p}
pgpool | pcp_attach_node -h h -U bob -w {p}
sentinel-auth | sentinel auth-pass mymaster {p}
keydb | keydb-cli -a {p} ping
valkey | valkey-cli -a {p} ping
isql-P | isql -U sa -P {p} -S DB1
gbak | gbak -b -user SYSDBA -pas {p} db.fdb b.fbk
tsql | tsql -S db1 -U sa -P {p}
clickhouse-xml | <users><bob><password_sha256_hex>{h64}</password_sha256_hex></bob></users>
couchbase | couchbase-cli bucket-list -c cb1 -u Administrator -p {p}
cbbackup | cbbackupmgr backup -c cb1 -u bob -p {p}
neo4j | cypher-shell -u neo4j -p {p} 'MATCH (n) RETURN n'
oracle-connect | CONNECT scott/{p}@orcl
hdbsql | hdbsql -i 00 -u SYSTEM -p {p} 'select 1'
vsql | vsql -U dbadmin -w {p} -c 'select 1'
beeline | beeline -u jdbc:hive2://h:10000 -n bob -p {p}
exasol | exaplus -c h:8563 -u sys -p {p}
ldappasswd-s | ldappasswd -x -D cn=admin,dc=x -W -s {p} uid=bob,dc=x
ldapcompare | ldapcompare -D cn=admin -w {p} uid=x,dc=x cn:x
ldapvi | ldapvi -D cn=admin -w {p}
sssd | ldap_default_authtok = {p}
kadmin-w | kadmin -p admin/admin -w {p} -q listprincs
kdb5-P | kdb5_util create -s -P {p}
ipa-install | ipa-server-install -a {p} -p {p} -r EX.COM -U
realm-join | echo {p} | realm join -U admin ex.com
adcli | echo -n {p} | adcli join --stdin-password ex.com
smbmap | smbmap -H nas -u bob -p {p}
wmic | wmic -U DOM/bob%{p} //h 'select * from x'
crackmapexec | crackmapexec smb h -u bob -p {p}
impacket | secretsdump.py DOM/bob:{p}@10.0.0.5
evil-winrm | evil-winrm -i h -u bob -p {p}
smbpasswd-file | bob:1000:XXXXXXXXXXXXXXXXXXXXXXXXXXXXXXXX:{H32}:[U          ]:LCT-5F000000:
mount-cifs-user | mount.cifs //nas/x /mnt -o user=bob%{p}
fstab-cifs-short | //nas/x /mnt cifs user=bob%{p},uid=0 0 0
curlrc | user = "bob:{p}"
ncftp-p | ncftpput -u bob -p {p} ftp.h /d f
ncftpget | ncftpget -u bob -p {p} ftp.h . f
amanda | amandapass //nas/x bob%{p}
sevenzz | 7zz a -p{p} a.7z dir
cryptsetup-here | cryptsetup luksOpen /dev/sdb1 data <<< {p}
veracrypt-p | veracrypt -t -p {p} /v /mnt
encfs | echo {p} | encfs -S /a /b
zfs-key | echo {p} | zfs load-key tank/enc
wpa_passphrase | wpa_passphrase "Home Net" {p}
wpa_cli_wep | wpa_cli set_network 0 wep_key0 {H26}
interfaces-wep | wireless-key s:{p}
ipmi-power | ipmipower -h b -u ADMIN -p {p} --stat
fence-ipmi | fence_ipmilan -a b -l ADMIN -p {p} -o status
pcs-auth | pcs host auth n1 n2 -u hacluster -p {p}
racadm | racadm -r b -u root -p {p} getsysinfo
snmptrapd | authCommunity log,execute,net {p}
frr-ospf | ip ospf authentication-key {p}
openconnect | echo {p} | openconnect -u bob --passwd-on-stdin vpn.h
openfortivpn | openfortivpn vpn.h -u bob -p {p}
radtest | radtest bob {p} 127.0.0.1 0 {p}
radclient | echo 'User-Name=bob,User-Password={p}' | radclient h auth {p}
tac-plus | user = bob { login = cleartext {p} }
dig-y | dig -y k1:{B22}== @ns x axfr
kubeadm-cert | kubeadm join h:6443 --certificate-key {h64}
podman-secret | printf {p} | podman secret create db -
etcdctl | etcdctl --user root:{p} get x
zkcli | zkCli.sh addauth digest super:{p}
mc-alias | mc alias set m https://h minioadmin {p}
swift | swift -A http://h/auth -U a:bob -K {p} list
ntfy-user | ntfy publish -u bob:{p} t m
twine | twine upload -u bob -p {p} dist/*
poetry | poetry config http-basic.x bob {p}
chef | knife bootstrap h -x bob -P {p}
jenkins-cli | java -jar jenkins-cli.jar -s http://j -auth bob:{h34} list-jobs
sonar | sonar-scanner -Dsonar.login={h40}
newrelic-ini | newrelic.license = "{h40}"
splunk | splunk add forward-server h:9997 -auth admin:{p}
nagios-resource | $USER3$={p}
icinga-ticket | icinga2 node setup --ticket {h40}
monit | allow admin:{p}
nut-monitor | MONITOR ups@localhost 1 upsmon {p} master
erl-cookie | erl -sname a -setcookie {L20}
jboss-add | add-user.sh -u bob -p {p} -g admin
tinyproxy | BasicAuth bob {p}
proxychains | socks5 10.0.0.1 1080 bob {p}
haproxy-stats | stats auth bob:{p}
drush | drush user:password bob '{p}'
devise | config.pepper = '{h128}'
pct-url | postgres%3A%2F%2Fbob%3A{p}%40db1%2Fshop
iscsiadm | iscsiadm -m node -T t -o update -n node.session.auth.password -v {p}
scst | IncomingUser "bob {p}"
kernel-rootpw | inst.sshpw={p} rootpw={p}
systemd-creds | systemd-ask-password <<< {p}
virsh-secret | virsh secret-set-value uuid {B24}
qemu-secret | qemu-img info --object secret,id=s,data={p} x
vncpasswd | vncpasswd -f <<< {p}
vncviewer | vncviewer -passwd <(echo {p} | vncpasswd -f) h:1
tigervnc | vncserver -rfbauth <(printf %s {p})
swaks | swaks --to a@b --server smtp.h -au bob -ap {p}
sendemail | sendEmail -f a@b -t c@d -s smtp.h -xu bob -xp {p}
sendmail-auth | AuthInfo:smtp.h "U:bob" "P:{p}"
cyrus | echo {p} | saslpasswd2 -p -c bob
saslpasswd | saslpasswd2 -c bob <<< {p}
freeswitch-es | fs_cli -H h -p {p}
kamailio | kamctl add 100 {p}
sipp | sipp -s 100 -au 100 -ap {p} h
coturn-user | user=bob:{p}
turnutils | turnutils_uclient -u bob -w {p} h
nickserv | /msg NickServ IDENTIFY {p}
winbind | wbinfo -a bob%{p}
ntlmv2 | bob::DOM:0123456789abcdef:{h32}:{h96}
pth | -hashes aad3b435b51404eeaad3b435b51404ee:{h32}
pbkdf2 | pbkdf2:sha256:600000${A16}${h64}
werkzeug | scrypt:32768:8:1${A16}${h128}
sha1crypt | $sha1$480000${A8}${C28}
mssql-hash | 0x0200{H128}
users-oath | HOTP/T30/6 bob - {h40}
yubico | ykman otp chalresp -f 2 {h40}
yubi-pin | ykman piv access change-pin -P {d6} -n {d6}
pkcs11-pin | pkcs11-tool --login --pin {d6} -O
softhsm | softhsm2-util --init-token --slot 0 --label x --pin {d6} --so-pin {d8}
tpm2 | tpm2_createprimary -C o -P {p}
hdparm-unlock | hdparm --user-master u --security-unlock {p} /dev/sda
sedutil | sedutil-cli --setlockingrange 0 LK {p} /dev/sda
ucarp | ucarp -i eth0 -s 10.0.0.1 -v 1 -p {p} -a 10.0.0.2
ossec | ossec-authd -P {p}
crowdsec | cscli bouncers add x -k {p}
transmission-authenv | TR_AUTH=bob:{p}
zwave-key | S2_AccessControl: {H32}
sshfs | echo {p} | sshfs bob@h:/ /mnt -o password_stdin
autofs-pct | x -fstype=cifs,user=b%{p} ://h/x
curlftpfs | curlftpfs -o user=bob:{p} ftp.h /mnt
proftpd-sql | SQLConnectInfo x@localhost bob {p}
pureftpd | (echo {p}; echo {p}) | pure-pw useradd bob -u ftp -d /srv
word-is | the password for admin is {p}
word-is-2 | The password of user bob on db1 is {p}, change it soon
word-set | password changed to {p}
word-pw | PW for root is {p}
word-key | backup key {p}
word-key2 | the recovery key is {p}
word-key3 | api key {p} was revoked
word-login | login with bob / {p}
word-code | unlock code {d8}
word-wlan | WLAN-Schlüssel: {p}
word-cred | credentials bob:{p}
word-enter | enter {p} as the password
word-temp | A temporary password is generated for root@localhost: {p}
log-mysqltemp | [Note] [MY-010454] [Server] A temporary password is generated for root@localhost: {p}
token-oneword | APITOKEN={p}
token-oneword2 | AUTHTOKEN={p}
token-oneword3 | GITHUBTOKEN={p}
token-oneword4 | accesstoken: {p}
token-oneword5 | refreshtoken={p}
token-oneword6 | bottoken={p}
token-oneword8 | DEPLOYTOKEN={p}
token-oneword9 | slacktoken = "{p}"
token-one-pwd | DBPWD={p}
token-one-cred | DBCREDENTIALS={p}
token-one-signing | SIGNINGKEY={p}
token-one-enc | ENCRYPTIONKEY={p}
token-one-priv | PRIVKEY={p}
token-one-smtppw | SMTPPW={p}
token-one-mypw | MYPW={p}
token-netbird | netbird up --setup-key {H8}-{H4}-{H4}-{H4}-{H12}
token-snyk | snyk auth {h8}-{h4}-{h4}-{h4}-{h12}
token-opsgenie | GenieKey {h8}-{h4}-{h4}-{h4}-{h12}
token-minio | mc admin user add m bob {p}
token-seafile | seaf-cli sync -u bob -p {p} -l x
token-nextcloudcmd | nextcloudcmd -u bob -p {p} /d https://h
c-mysql3 | ExecStart=/usr/sbin/mysqld -p{p}
c-mount2 | mount.cifs //srv/x /mnt -o user=X/bob%{p},ro
c-openssl3 | openssl aes-256-cbc -k {p} -in a -out b
c-luks2 | cryptsetup luksFormat /dev/sdb1 <<< "{p}"
c-chp2 | chpasswd <<< 'root:{p}'
c-ht2 | htpasswd -nbm admin {p}
c-ldapp | ldappasswd -H ldap://l -x -D cn=admin -w {p} -s {p} uid=x
c-isql | isql -S SRV -U sa -P {p}
c-vpn | openconnect --user=bob --passwd-on-stdin h <<< {p}
c-podman | printf {p} | podman secret create pg_pass -
c-podman3 | echo "{p}" | podman secret create tok -
c-bot | BOTTOKEN={p}
c-ci | CITOKEN={p}
c-iscsi | root=iscsi:user:{p}@10.0.0.5::3260:1:iqn.2020-01.x:y
c-iscsi2 | rd.iscsi.initiator=iqn.x netroot=iscsi:u:{p}@h::3260::iqn
c-squid | cache_peer 10.0.0.2 parent 8080 0 no-query default login=bob:{p}
c-nr2 | newrelic.license="{h40}"
c-ntlm2 | nt_hash = {h32}
c-ntlm3 | hash NTLM: {h32}
c-pct | redis%3A%2F%2F%3A{p}%40cache%3A6379%2F0
c-pct2 | user%3Dbob%26pass%3D{p}
c-pct3 | https%3A%2F%2Fbob%3A{p}%40git.h%2Fr.git
c-vnc | vncpasswd -f <<< "{p}" > /root/.vnc/passwd
c-tac | tacacs-server host 10.0.0.3 key {p}
c-nag | define command { command_line $USER1$/check_mysql -H h -u nagios -p {p} }
c-nag2 | check_http -H h -a admin:{p} -S
c-ast2 | auth=bob:{p}@asterisk
c-jenk | java -jar jenkins-cli.jar -auth admin:{p} -s http://j
c-sonar | sonar.login={h40}
c-php | $db = new mysqli("localhost", "bob", "{p}", "x");
c-adcli | adcli join -U admin --stdin-password ex <<< {p}
c-nut | MONITOR ups@h 1 mon {p} slave
pagerduty-routing | routing_key: {h32}
c-radtest | radtest bob {p} localhost 1812 {p}
"""

# Names whose values are secret; a name and a template for the value.
NAMED: Final = """
db-password | DB_PASSWORD | {p}
api-key | apiKey | {A32}
dd-api-key | DD_API_KEY | {h32}
uuid-token | HEROKU_API_KEY | {h8}-{h4}-{h4}-{h4}-{h12}
client-secret | client_secret | {p}
linode | LINODE_TOKEN | {h64}
algolia | ALGOLIA_ADMIN_KEY | {h32}
opsgenie | opsgenie_api_key | {h8}-{h4}-{h4}-{h4}-{h12}
consul | CONSUL_HTTP_TOKEN | {h8}-{h4}-{h4}-{h4}-{h12}
nomad | NOMAD_TOKEN | {h8}-{h4}-{h4}-{h4}-{h12}
twilio | TWILIO_AUTH_TOKEN | {h32}
secret-key-base | SECRET_KEY_BASE | {h128}
django | DJANGO_SECRET_KEY | {p}{p}
laravel | APP_KEY | base64:{B43}=
rails-master | RAILS_MASTER_KEY | {h32}
wordpress-salt | AUTH_SALT | {p}{p}
mysql-root | MYSQL_ROOT_PASSWORD | {p}
pgpassword | PGPASSWORD | {p}
redis-auth | REDISCLI_AUTH | {p}
smtp-pass | smtp_pass | {p}
rpc-secret | rpc-secret | {p}
sasl | sasl.jaas.password | {p}
passphrase | key_passphrase | {p}
unlock-code | unlock_pin | {d8}
kennwort | Kennwort | {p}
passwort | Passwort | {p}
zugangscode | Datenbankkennwort | {p}
geheimnis | geheimnis | {p}
geheim-schluessel | geheimer_schlüssel | {p}
contrasena | contraseña | {p}
contrasena-plain | contrasena | {p}
clave | clave_secreta | {p}
senha | senha | {p}
senha-long | senha_do_banco | {p}
mot-de-passe | mot_de_passe | {p}
mot-de-passe-camel | motDePasse | {p}
mot-de-passe-spaced | mot de passe | {p}
haslo | hasło | {p}
haslo-plain | haslo_bazy | {p}
russian | пароль | {p}
russian-db | пароль_базы | {p}
ukrainian | гасло | {p}
chinese | 密码 | {p}
chinese-db | 数据库密码 | {p}
chinese-old | 密碼 | {p}
japanese | パスワード | {p}
japanese-code | 暗証番号 | {p}
korean | 비밀번호 | {p}
finnish | salasana | {p}
swedish | lösenord | {p}
norwegian | passord | {p}
danish | adgangskode | {p}
dutch | wachtwoord | {p}
italian | chiave_segreta | {p}
italian-password | parola d'ordine | {p}
romanian | parolă | {p}
czech | heslo | {p}
turkish | şifre | {p}
turkish-parola | parola | {p}
hungarian | jelszó | {p}
greek | κωδικός | {p}
hebrew | סיסמה | {p}
arabic | كلمة_السر | {p}
hindi | पासवर्ड | {p}
vietnamese | mật_khẩu | {p}
indonesian | kata_sandi | {p}
croatian | lozinka | {p}
slovene | geslo | {p}
estonian | parool | {p}
lithuanian | slaptažodis | {p}
full-width | ｐａｓｓｗｏｒｄ | {p}
full-width-upper | ＤＢ＿ＰＡＳＳＷＯＲＤ | {p}
zero-width | pass\u200bword | {p}
soft-hyphen | pass\u00adword | {p}
bom | \ufeffpassword | {p}
joiner | to\u2060ken | {p}
bidi | \u202epassword | {p}
math-letters | 𝗽𝗮𝘀𝘀𝘄𝗼𝗿𝗱 | {p}
combining | contrasen\u0303a | {p}
"""


class Part(NamedTuple):
    """A text with secrets in it, and these."""

    text: str
    secrets: tuple[str, ...]


class Kind(NamedTuple):
    """A kind of secret: its name, its family, what names it (or nothing), and its template."""

    name: str
    family: str
    label: str
    template: str


def kinds() -> list[Kind]:
    """Return all kinds, which have different names."""
    tokens = [Kind(*row[:1], "token", "", row[1]) for row in _rows(TOKENS)]
    phrases = [Kind(*row[:1], "phrase", "", row[1]) for row in _rows(PHRASES)]
    named = [Kind(row[0], "named", row[1], row[2]) for row in _rows(NAMED)]
    found = [*tokens, *phrases, *named]
    assert len({kind.name for kind in found}) == len(found)
    return found


def _rows(table: str) -> list[list[str]]:
    return [
        line.split(" | ", 2) if table is NAMED else line.split(" | ", 1)
        for line in table.strip("\n").split("\n")
    ]


def fill(template: str, rng: random.Random) -> Part:
    """Make a secret of a template."""
    secrets: list[str] = []

    def make(match: re.Match[str]) -> str:
        letter, count = match[1], int(match[2] or 16)
        made = password(rng) if letter == "p" else _random(CLASSES[letter], count, rng)
        secrets.append(made)
        return made

    text = _PART.sub(make, template)
    return Part(text, tuple(secrets))


def _random(characters: str, count: int, rng: random.Random) -> str:
    """Draw characters, the first and the last of which are letters or digits where it is long."""
    while True:
        made = "".join(rng.choices(characters, k=count))
        if made[0].isalnum() and made[-1].isalnum():
            return made


_SYLLABLES: Final = "ka vo ri ten mul sor dap quil zan bru fel wix jor pem thu gla".split()


def password(rng: random.Random) -> str:
    """Make up a password as a person does: syllables, a capital, digits, a mark."""
    word = "".join(rng.sample(_SYLLABLES, rng.choice((3, 4))))
    mark = rng.choice("!_.+-")
    number = str(rng.randrange(10, 9999))
    style = rng.randrange(4)
    if style == 0:
        return word.capitalize() + mark + number
    if style == 1:
        return word + number + mark
    if style == 2:
        return word[:4] + number + word[4:].capitalize()
    return word.capitalize() + number
