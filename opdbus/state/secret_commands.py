"""Grammar of command lines: options, arguments and input of programs that hold a secret.

Tables of patterns that `secret_patterns` compiles with their marks.
"""

import re
from typing import Final

# Options whose values are secret although their names do not show it, and behind them their
# programs. An option ends in `~` if its value is a word of its own, in `_` if its value is glued
# on: `mysql -p shop` asks for a password and opens a database.
_OPTIONS_OF: Final = """
-p_ mysql mysqldump mysqladmin mysqlimport mysqlcheck mysqlshow mysqlslap mysqlbinlog mysqlpump
mysqlsh mysql_upgrade mysqld mysqld_safe mariadbd mariadb mariadb-dump mariadb-admin mariadb-check
mariadb-import mariadb-show mariadb-backup mariadb-upgrade mariadb-binlog mariabackup xtrabackup
innobackupex mycli | -p sshpass mytop mongo mongosh mongodump mongorestore mongoexport mongoimport
mongostat mongotop usermod useradd 7z 7za 7zr 7zz login rdesktop cqlsh doveadm rar unrar
openfortivpn ucarp fs_cli ncftp ncftpput ncftpget ncftpls ipmipower racadm turnadmin tpm2_load
tpm2_unseal veracrypt caddy check_mysql check_mysql_query check_pgsql check_oracle check_mssql
check_nt | -p~ ipa-server-install ipa-replica-install cscli az | -hp_ rar | -P sqlcmd bcp osql
isql tsql fisql bsqldb freebcp check_ldap ossec-authd agent-auth kdb5_util tpm2_createprimary
tpm2_create knife zip unzip zipcloak ipmitool mosquitto_pub mosquitto_sub mosquitto_rr ssh-keygen
gpg-preset-passphrase | -s~ slappasswd ldappasswd eapol_test | -a~ ldappasswd ipa-server-install
ipa-replica-install | -a redis-cli valkey-cli keydb-cli redis-benchmark | --pass redis-cli
valkey-cli keydb-cli curl | --oauth2-bearer,--proxy-pass,--tlspassword curl | --plaintext caddy |
-w ldapsearch ldapadd ldapmodify ldapdelete ldapwhoami ldapcompare ldapmodrdn ldapexop ldapvi
ldappasswd kadmin vsql turnutils_uclient ipa-client-install basic_ldap_auth ext_ldap_group_acl
pcp_attach_node pcp_node_info | -w~ kadmin.local ipa-server-install ipa-replica-install | -c
snmpget snmpset snmpwalk snmpgetnext snmpbulkget snmpbulkwalk snmptable snmptrap snmpinform
snmpstatus snmpdf snmptranslate | -A,-X snmpget snmpset snmpwalk snmpgetnext snmpbulkget
snmpbulkwalk snmptable snmptrap | -C~ check_snmp check_ifstatus check_ifoperstatus | -N ssh-keygen
| /p: xfreerdp xfreerdp3 wlfreerdp sdl-freerdp |
password,wifi-sec.psk,802-11-wireless-security.psk,802-1x.password nmcli | -pw plink pscp psftp
putty nodetool gsec kadmin kadmin.local addprinc cpw change_password | -pas gbak gfix | -ap swaks
sipp | -xp sendEmail sendemail | -K~ swift openssl | -k~ openssl cscli | -hmac,-psk openssl |
-setcookie erl iex elixir | -t~ influx codecov gotify
doctl | -r~ SUSEConnect | -s~ eyaml | -u_ dislocker | -T zerotier-cli | -y~ nsupdate dig delv kdig |
--pin pkcs11-tool softhsm2-util ykman p11tool | --so-pin pkcs11-tool softhsm2-util p11tool |
--security-set-pass,--security-unlock hdparm | --ticket icinga2 | --license newrelic-install
newrelic | --auth netlify | --certificate-key kubeadm | -encrypt consul serf nomad |
--sas-token,--account-key az | --secret-string aws | --setup-key netbird | --eab-hmac-key certbot
"""
SECRET_FLAGS: Final[dict[str, tuple[str, ...]]] = {}
for _row in _OPTIONS_OF.split("|"):
    _options, *_programs = _row.split()
    for _program in _programs:
        SECRET_FLAGS[_program] = (*SECRET_FLAGS.get(_program, ()), *_options.split(","))
VALUE: Final = (
    r"""(?:'"'"'[^"']*+|"[^"]++"?|'[^']++'?|\$\([^()\n]{1,200}\)|\\?["'][^"'\\]++|[^\s"';|&)]++)"""
)
# A user before a password of any program: `-u bob -p x`, `--user sa -P x`, `-D cn=x -w x`.
USER_AND_PASSWORD: Final = (
    r"""(?<=\s)((?:-[uUlDn]|--?(?:[\w]+[-.])?user(?:-?name)?)(?:\s+|=)["']?[\w.@\\/=,-]++["']?\s+"""
    r"""(?:(?!--?\w*(?:pass|pw))-{1,2}[A-Za-z][\w.-]*+(?:(?:=|\s+)[^\s-]\S*+)?\s+){0,6}?"""
    r"""(?:-p|-P|-w|-pw|-pas|-pass)\s+)(?![-/~.$<`]|\d[\d:.,/-]*+(?:\s|$))"""
    rf"""({VALUE})"""
)
# The same without a user; the value must look like a password.
LONE_PASSWORD: Final = rf"""(?<=\s)((?:(?:-[pPkKw]|-pw|-pass)\s+|/p(?:ass)?:))({VALUE})(?=\s|\Z)"""
# Programs whose -p, -P or -w is no password, and such as run another program.
NOT_ASKING: Final = re.compile(
    r"(?:journalctl|systemctl|systemd-run|machinectl|loginctl|busctl|runuser|su|ssh|scp"
    r"|docker|podman|nerdctl|crictl|kubectl|oc|lxc|nsenter|chroot|setpriv|start-stop-daemon"
    r"|psql|pg_\w+|pgbench|postgres|createdb|dropdb|createuser|dropuser|vacuumdb|reindexdb|clusterdb"
    r"|wget|ps|lsof|htop|strace|pgrep|pkill|mkdir|cp|mv|rsync|tar|grep|git|su-exec|gosu|crontab|nmap"
    r"|nc|gcc|lastlog|screen|tmux|usermod|chown|ip6?tables|nft|cargo|make|curl|apt\S*|dnf|zypper|ls"
    r"|python[\d.]*|gunicorn|uvicorn|iw\w*)\Z"
)
# Programs that run the one behind their options as another user.
RUNNER: Final = re.compile(r"(?:sudo|doas|setuidgid|chpst|watch|xargs|env|install|find|mount)\Z")
# Programs whose -u or --user may be a user and a group.
TAKES_GROUP: Final = re.compile(
    r"(?:docker|podman|nerdctl|buildah|chown|rsync|install|uwsgi|su-exec|gosu|kubectl|chroot)\Z"
)
# Programs whose -a or -n is a user and a password.
TAKES_LOGIN: Final = re.compile(r"(?:transmission-\w{1,40}|check_\w{1,40}|http|https|xh)\Z")

# Words that say that a program reads a secret from its input.
READS_SECRET: Final = re.compile(
    r"(?i)(?<![\w.-])(?:chpasswd|passwd|smbpasswd|vncpasswd|saslpasswd2|pdbedit|kinit|kadmin|realm"
    r"|adcli|cryptsetup|veracrypt|encfs|gocryptfs|sshfs|ssh-add|mokutil|grub-mkpasswd-pbkdf2|pure-pw"
    r"|zfs|keyctl|secret-tool|openconnect|openvpn|gpg2?|su|systemd-(?:creds|ask-password|cryptenroll)"
    r"|mkpasswd|slappasswd|htpasswd|openssl\s+(?:enc|rsa|passwd|pkcs\w{1,9}|aes\S{0,40}|des3)|age|clevis"
    r"|wg\s+(?:pubkey|set)|sudo\s+(?:-\w{1,20}\s+){0,3}-\w{0,9}S\w{0,9}|vault|argocd"
    r"|(?:docker|podman|nerdctl|buildah|skopeo|crane|oras|helm|kubectl|oc)\s(?:\S+\s){0,3}?(?:secret|login))"
    r"(?![\w.-])|(?<![\w/-])-{1,2}[\w-]{0,40}(?:pass|secret|token|luks|cred|key)[\w-]{0,40}(?![\w./-])"
    r"|(?<=\s)(?:private-key|preshared-key|-rfbauth)(?=[\s=]|$)"
)
# Programs that only show, look through or store their input.
SHOWS_INPUT: Final = re.compile(
    r"\s*(?:sudo\s+(?:-\w+\s+){0,3})?(?:/\S*/)?(?:grep|egrep|sed|awk|jq|yq|tee|cat|sort|uniq|wc|tr"
    r"|cut|xargs|logger|at|bc|mail|mailx|head|tail|tac|less|more|column|diff|tar|dd|md5sum|sha\w*sum|read|python\S*|(?:ba)?sh"
    r"|base64|xxd|od|crontab|apt-key|wall|write|lpr)(?![\w.-])"
)
_PRINTED: Final = r"""(?:["'\\]{1,9}[^|<>]{1,200}?|[^|\n<>]{1,300}?)"""
_ECHO: Final = r"(?<![\w.-])((?:echo|printf)\s++(?:-\w+\s++){0,9})"
# Words that echo or printf print into a program; its text is looked at.
PRINTED: Final = (
    (
        "echo |printf ",
        rf"{_ECHO}(?=[^|]{{1,320}}\|)({_PRINTED})(\s{{0,9}}\|&?\s{{0,9}})(?=([^|;\n]{{1,300}}))",
    ),
)
# A word or a command's output as the input of a program that stands before it.
FED: Final = (
    ("<<<", rf"(<<<\s*+\$?)(?!\$)({VALUE})"),
    ("<(echo |<(printf |<( echo ", r"(<\(\s*+(?:echo|printf)\s++)([^()\n]{1,300})(?=\))"),
)
# The name of a file that gets a secret: `echo x > /etc/app/token`.
REDIRECTED: Final = (
    ("echo |printf ", (
        rf"""{_ECHO}(?=[^>|\n]{{1,220}}[>|])([^|<>\n;&]{{1,200}}?)(\s{{0,9}}(?:>{{1,2}}|\|\s?(?:sudo\s+)?tee(?:\s+-a)?\s)"""
        r"""\s{0,9}["']?)(?=([\w./~-]+))"""
    )),
)  # fmt: skip
# `-u bob:x`, `--creds bob:x`, `user=bob:x`, `stats auth bob:x`: option or word, name, password.
CREDENTIALS: Final = (
    (" -|user|auth|cred|login|allow |digest |pass|sasl ", (
        r"""(?i)(?<![\w./@-])((?:-[a-zA-Z]{0,6}[una]\s++|-u(?=\w)|--?(?:[a-z]+-){0,3}(?:user(?:name|pwd|pass)?|auth"""
        r"""|creds?|credentials?|login)(?:\s++|=)|(?:[\w-]+[._-])?(?:user(?:s|name|pass|pwd)?|auth|login"""
        r"""|creds?|credentials?|userpass)["']?(?:\s?=\s?|:\s)|(?:(?:stats\s+)?auth|allow|digest|credentials"""
        r"""|basicauth|sasl)\s+)["'\\]{0,9}([\w.@+\\-]{1,64}):["'\\]{0,2})(?!//)("""
        r"""(?<=['"]\w:)[^"'\\]{3,}+|[^\s"'\\;|&,]{2,}+)"""
    )),
)  # fmt: skip
# Groups of a user, as in `--user bob:users`.
GROUPS: Final = re.compile(
    r"(?i)(?:\d+|root|users?|staff|wheel|adm|sudo|admin|docker|daemon|www-data|nogroup|nobody|audio"
    r"|video|plugdev|input|kvm|tty|disk|mail|games|systemd-\S+|all|any|none|latest|\d[\d.:/-]*\w{0,3})"
)
PASSWORD_AFTER_PERCENT: Final = (
    ("%", (
        r"""(?<![\w./-])((?:-[UAa]\s*+|--(?:user|username|authenticat(?:ion|e))[=\s]\s?|(?:user|username)=)"""
        r"""["'\\]{0,9}(?:[\w.-]{1,64}[/\\]{1,2})?[\w.@$-]{1,64}%)(?!40\w)[^\s"',;|&]{2,}+"""
    )),
    ("%", r"""(iscsi://[\w.-]{1,64}%)[^\s/@]{2,}+(?=@)"""),
    ("%", r"""(//[\w.-]{1,64}/\S{1,99}\s+[\w.-]{1,64}%)[^\s"',;|&]{2,}+"""),
)  # fmt: skip

ARGUMENT: Final = rf"""(?!--[a-z])(?:"[^"]*+"|{VALUE})"""
_BLANKS: Final = r"\s+"
_OPTIONS: Final = r"(?:\s++-\S++)*+"
# The same with numbers, which are values of options.
_OPTIONS_AND_NUMBERS: Final = r"(?:\s+-\S++|\s+\d+)*(?!\s+-\S|\s+\d)"
_MORE: Final = r"[^\n;|&]{0,200}?\s"
# Secrets at a fixed place behind words; a star stands for any word.
_BEHIND: Final = """
ejabberdctl register * *; ejabberdctl change_password * *; prosodyctl register * *; kamctl add *
kamctl passwd *; samba-tool user create *; samba-tool user add *; samba-tool user setpassword *
authorize-account *; activate-refresh-token *; pro attach
encrypt_string; wandb login; bw unlock
rclone obscure; snyk auth; cargo login; vault operator unseal; ngrok authtoken; add-authtoken
mc alias set * * *; mc admin user add * *; kubeadm token create; set-initial-password
reset-admin-password; rabbitmqctl authenticate_user *; drush user:password *; drush upwd *
-createCredential * *; composer config http-basic.* *; poetry config http-basic.* *
poetry config pypi-token.*; radtest *; radtest * * * *; radclient * auth; radclient * acct
mc config host add * * *; bw login *; md5-key
set_password *; incominguser *; outgoinguser *; IncomingUser *; OutgoingUser *; com2sec * *
com2sec6 * *; authCommunity *; trapsink *; trap2sink *; informsink *; trapcommunity; rocommunity6
rwcommunity6; virsh secret-set-value *; ykman otp chalresp * *
MONITOR * * *; BasicAuth *; SQLConnectInfo * *; LDAPBindDN *; insecure-password; HidServAuth *
GenieKey; login = cleartext; NickServ IDENTIFY; quote PASS; sentinel auth-pass *; wireless-key
set_network * psk; set_network * password; set_network * sae_password; socks5 * * *; socks4 * * *
doveadm auth test *; doveadm auth login *; db2 connect to * user * using; wep_key0
--setlockingrange * *; --initialsetup; iwconfig * key; message-digest-key * md5; sshpw *
authentication-key; IPSec secret; Xauth password; enable password; enable secret
enable secret [0589]; neighbor * password
tacacs-server key; tacacs-server host * key; radius-server key
radius-server host * key; key-string
crypto isakmp key; snmp-server community; username * password [057]; username * secret [0589]
username * password; username * secret; username * privilege * secret( [0589])?
"""
# The same with patterns: their marks, and what stands before the secret.
ARGUMENTS: Final = (
    ("identified ", r"(?i:(?:user|role)\s+\S+\s+identified\s+by)",
     r"""(?i:identified\s+(?:with\s+\S+\s+)?(?:by|as)(?:\s+password)?)(?=\s+N?["'\\])"""),
    # with -n there is no file
    ("htpasswd ", *(
        rf"htpasswd(?=(?:\s+-\S++|\s+\d+)*?\s+-\w*b){without}{_OPTIONS_AND_NUMBERS}\s+{names}"
        for without, names in (
            (r"(?!(?:\s+-\S++|\s+\d+)*?\s+-\w*n)", r"\S+\s+\S+"),
            (r"(?=(?:\s+-\S++|\s+\d+)*?\s+-\w*n)", r"\S+"),
        )
    )),
    ("mosquitto_passwd ", rf"mosquitto_passwd(?=(?:\s+-\S++)*?\s+-\w*b){_OPTIONS}\s+\S+\s+\S+"),
    ("net user ", r"net\s+user\s+(?:/?add\s+)?[\w.\\-]+(?!\s+/)"),
    ("openssl passwd ", (
        r"openssl\s+passwd(?:\s+-salt\s+\S++|\s+-(?!salt|in|stdin)\S++)*"
        r"(?!\s+-salt\s+\S|\s+-(?!salt|in|stdin)\S)"
    )),
    ("-macopt ", r"-macopt\s+(?:hex)?key:"),
    ("mkpasswd ", r"mkpasswd(?:\s+-[mSRP]\s+\S++|\s+--\S++){0,9}(?!\s+-)"),
    ("vault login ", rf"vault\s+login{_OPTIONS}(?!\s+\w+=)"),
    ("isql |iusql ", r"(?:isql|iusql)\s+(?:-\w\s+)*[A-Za-z][\w.-]*\s+[A-Za-z][\w.-]*(?!\s+-)"),
    ("change-pin |change-puk ", r"change-p(?:in|uk)\s+-P", r"change-p(?:in|uk)\s+-P\s+\S+\s+-[nN]"),
    ("wpa_passphrase ", r"""wpa_passphrase\s+(?:"[^"]*"|'[^']*'|[^\s=]+)"""),
    ("key |keys ", rf"iw\s{_MORE}keys?"),
    ("qpdf ", rf"qpdf{_MORE}--encrypt", rf"qpdf{_MORE}--encrypt\s+\S+"),
    ("ogin:", r"ogin:\s+\S+\s+\S*word:(?=\s)"),
    (" login ", r"[A-Za-z]{0,4}\d{1,6}\s+LOGIN\s+\S+"),
    ("addent ", r"addent\s+-password(?:\s++-\w\s++\S++)*+"),
    ("createuser ", r"createUser\s+(?:-e\s+\S+\s+)?\S+\s+\S+",
     r"createUser\s+(?:-e\s+\S+\s+)?(?:\S+\s+){3}\S+"),
    (" nt |nt hash |ntlm |ntlm hash ",
     r"(?i:nt(?:lm)?(?:\s+hash)?)(?=\s+(?:0x)?[0-9a-fA-F]{32}\b)"),
    ("smbclient ", r"smbclient\s+//\S+(?!\s+-)"),
    ("pragma ", r"(?i:PRAGMA\s+(?:hex)?key)\s*="),
    (" des ", r"=\s+des(?=\s+[./0-9A-Za-z]{13}\b)"),
    ("lftp |open -u", r"""(?:lftp|open)\s(?:[^\n|]{0,200}?\s)?-u\s*["']?[\w.@-]{1,64},"""),
    ("curl ", r"curl\s[^\n|]{0,99}?(?:-E|--cert|--proxy-cert)[\s=]{0,3}(?!pkcs11)[\w./~-]{1,99}:"),
    ("zip ", rf"zip{_MORE}-\w{{1,5}}P"),
    ("data=", r"secret,[\w=,.-]{0,60}?data="),
    ("authenticate ", r"AUTHENTICATE(?=\s+[\"'])"),
    ("hotp", r"HOTP\S*\s+\S+\s+\S+(?=\s+[0-9a-fA-F]{20})"),
    ("iscsiadm ", rf"iscsiadm{_MORE}\S*auth\.password(?:_in)?\s+(?:-v|--value)"),
    ("--value ", rf"put-parameter{_MORE}SecureString{_MORE}--value"),
    ("vault kv |vault write ", r"vault\s+(?:kv\s+)?(?:put|patch|write)\s+(?:-\S+\s+)*\S+\s+\w+="),
    *(
        (words.partition(" ")[0].lower() + " ", rf"(?i:{words.replace(' ', _BLANKS)})")
        for words in _BEHIND.strip().replace("*", r"\S+").replace("\n", "; ").split("; ")
    ),
)  # fmt: skip
