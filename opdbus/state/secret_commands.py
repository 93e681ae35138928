"""Grammar of command lines: options, arguments and input of programs that hold a secret.

Tables of patterns that `secret_patterns` compiles with their marks.
"""

import re
from typing import Final

# Options of programs whose values are secret although their names do not show it.
_FLAGS: Final = {
    "mysql mysqldump mysqladmin mysqlimport mysqlcheck mysqlshow mysqlslap mysqlbinlog"
    " mysqlpump mysqlsh mysql_upgrade mysqld mysqld_safe mariadbd mariadb mariadb-dump"
    " mariadb-admin mariadb-check mariadb-import mariadb-show mariadb-backup mariadb-upgrade"
    " mariadb-binlog mariabackup xtrabackup innobackupex mycli": ("-p_",),
    "sshpass mytop mongo mongosh mongodump"
    " mongorestore mongoexport mongoimport mongostat mongotop usermod useradd 7z 7za 7zr 7zz login"
    " rdesktop cqlsh doveadm unrar openfortivpn ucarp fs_cli ncftp ncftpput ncftpget ncftpls"
    " ipmipower racadm turnadmin tpm2_load tpm2_unseal veracrypt truecrypt": ("-p",),
    "rar unrar": ("-hp_", "-p"),
    "slappasswd eapol_test": ("-s ",),
    "ldappasswd": ("-a ", "-s", "-w"),
    "caddy": ("--plaintext", "-p"),
    "gpg-preset-passphrase sqlcmd bcp osql isql tsql fisql bsqldb freebcp check_ldap ossec-authd"
    " agent-auth kdb5_util tpm2_createprimary tpm2_create knife zip unzip zipcloak ipmitool"
    " mosquitto_pub mosquitto_sub mosquitto_rr": ("-P",),
    "curl": ("--oauth2-bearer", "--pass", "--proxy-pass", "--tlspassword"),
    "redis-cli valkey-cli keydb-cli redis-benchmark": ("-a", "--pass"),
    "ldapsearch ldapadd ldapmodify ldapdelete ldapwhoami ldapcompare ldapmodrdn ldapexop ldapvi"
    " kadmin vsql turnutils_uclient ipa-client-install basic_ldap_auth ext_ldap_group_acl"
    " squid_ldap_auth pcp_attach_node pcp_node_info": ("-w",),
    "ipa-server-install ipa-replica-install": ("-a ", "-p ", "-w "),
    "snmpget snmpset snmpwalk snmpgetnext snmpbulkget snmpbulkwalk snmptable snmptrap snmpinform"
    " snmpstatus snmpdf snmptranslate": ("-c", "-A", "-X"),
    "check_snmp check_ifstatus check_ifoperstatus": ("-C ", "-A ", "-X "),
    "check_mysql check_mysql_query check_pgsql check_oracle check_mssql check_nt": ("-p",),
    "ssh-keygen": ("-N", "-P"),
    "xfreerdp xfreerdp3 wlfreerdp sdl-freerdp": ("/p:",),
    "nmcli": (
        *("password", "wifi-sec.psk", "802-11-wireless-security.psk", "802-1x.password"),
        *("wifi-sec.wep-key0", "802-1x.private-key-password", "gsm.password", "pppoe.password"),
    ),
    "plink pscp psftp putty nodetool gsec": ("-pw",),
    "gbak gfix gstat isql-fb": ("-pas", "-pass", "-password"),
    "swaks sipp": ("-ap",),
    "sendEmail sendemail": ("-xp",),
    "swift": ("-K ", "--key"),
    "openssl": ("-k ", "-K ", "-hmac", "-psk", "-pskkey"),
    "kadmin kadmin.local addprinc cpw change_password": ("-pw", "-w"),
    "cscli": ("-k ", "-p "),
    "erl iex elixir rabbitmqctl": ("-setcookie", "--cookie", "--erlang-cookie"),
    "influx codecov uploader": ("-t ",),
    "zerotier-cli": ("-T",),
    "pkcs11-tool softhsm2-util ykman p11tool": ("--pin", "--so-pin", "--new-pin"),
    "hdparm": ("--security-set-pass", "--security-unlock", "--security-disable",
               "--security-erase", "--security-erase-enhanced"),
    "icinga2": ("--ticket",),
    "newrelic-install newrelic": ("--license", "--licenseKey"),
    "netlify http https xh": ("--auth",),
    "kubeadm": ("--certificate-key",),
    "consul serf nomad": ("-encrypt",),
    "az": ("--sas-token", "--account-key", "-p "),
    "aws": ("--secret-string", "--master-user-password"),
        "nsupdate dig delv kdig": ("-y ",),
    "netbird": ("--setup-key",),
    "certbot lego acme.sh": ("--eab-hmac-key", "--hmac"),
}  # fmt: skip
# An option ends in a space if its value is a word of its own. It ends in `_` if its value is glued
# on: `mysql -p shop` asks for a password and opens a database.
SECRET_FLAGS: Final[dict[str, tuple[str, ...]]] = {}
for _programs, _flags in _FLAGS.items():
    for _program in _programs.split():
        SECRET_FLAGS[_program] = (*SECRET_FLAGS.get(_program, ()), *_flags)
VALUE: Final = (
    r"""(?:'"'"'[^"']*+|"[^"]++"?|'[^']++'?|\$\([^()\n]{1,200}\)|\\?["'][^"'\\]++|[^\s"';|&)]++)"""
)
# A user before a password of any program: `-u bob -p x`, `--user sa -P x`, `-D cn=x -w x`.
USER_AND_PASSWORD: Final = re.compile(
    r"""(?<=\s)((?:-[uUlDn]|--?(?:[\w]+[-.])?user(?:-?name)?)(?:\s+|=)["']?[\w.@\\/=,-]++["']?\s+"""
    r"""(?:(?!--?\w*(?:pass|pw))-{1,2}[A-Za-z][\w.-]*+(?:(?:=|\s+)[^\s-]\S*+)?\s+){0,6}?"""
    r"""(?:-p|-P|-w|-pw|-pas|-pass)\s+)(?![-/~.$<`]|\d[\d:.,/-]*+(?:\s|$))"""
    rf"""({VALUE})"""
)
# Programs whose -p, -P or -w is no password, and such as run another program.
NOT_ASKING: Final = re.compile(
    r"(?:journalctl|systemctl|systemd-run|machinectl|loginctl|busctl|runuser|su|ssh|scp"
    r"|docker|podman|nerdctl|crictl|kubectl|oc|lxc|nsenter|chroot|setpriv|start-stop-daemon"
    r"|psql|pg_\w+|pgbench|postgres|createdb|dropdb|createuser|dropuser|vacuumdb|reindexdb|clusterdb"
    r"|wget|ps|lsof|htop|strace|pgrep|pkill|mkdir|cp|mv|rsync|tar|grep|git|su-exec|gosu|crontab|nmap"
    r"|nc|gcc|lastlog|screen|tmux|usermod|chown)\Z"
)
# Programs that run the one behind their options as another user.
RUNNER: Final = re.compile(r"(?:sudo|doas|setuidgid|chpst|watch|xargs|env|install|find|mount)\Z")
# Programs whose -u or --user may be a user and a group.
TAKES_GROUP: Final = re.compile(
    r"(?:docker|podman|nerdctl|buildah|chown|rsync|install|uwsgi|su-exec|gosu|kubectl|chroot)\Z"
)
# Programs whose -a or -n is a user and a password.
TAKES_LOGIN: Final = re.compile(r"(?:transmission-\w+|check_\w+|http|https|xh)\Z")

# Words that say that a program reads a secret from its input.
READS_SECRET: Final = re.compile(
    r"(?i)(?<![\w.-])(?:chpasswd|passwd|smbpasswd|vncpasswd|saslpasswd2|pdbedit|kinit|kadmin|realm"
    r"|adcli|cryptsetup|veracrypt|encfs|gocryptfs|sshfs|ssh-add|mokutil|grub-mkpasswd-pbkdf2"
    r"|pure-pw|zfs|zpool|keyctl|secret-tool|docker|podman|nerdctl|helm|openconnect|openvpn|gpg2?"
    r"|su|systemd-creds|systemd-ask-password|systemd-cryptenroll|systemd-tty-ask-password-agent"
    r"|mkpasswd|slappasswd|htpasswd|openssl\s+(?:enc|rsa|passwd|pkcs\w+|aes\S*|des3)|age|pw"
    r"|wg\s+(?:pubkey|set)|wpa_passphrase|clevis|tpm2_\w+|luksmeta|bconsole|sudo\s+(?:-\w+\s+)*-\w*S"
    r"|bitlocker|dislocker|mysql_config_editor|occ|vault|argocd|crane|oras|skopeo|buildah)(?![\w.-])"
    r"|(?<![\w/])-{1,2}[\w-]*(?:pass|secret|token|luks|cred|key)[\w-]*(?![\w./])"
    r"|(?<=\s)(?:private-key|preshared-key|-rfbauth|-keyfile)(?=[\s=]|$)"
)
# Programs that only show, look through or store their input.
SHOWS_INPUT: Final = re.compile(
    r"\s*(?:sudo\s+(?:-\w+\s+){0,3})?(?:/\S*/)?(?:grep|egrep|sed|awk|jq|yq|tee|cat|sort|uniq|wc|tr"
    r"|cut|xargs|logger|at|bc|mail|mailx|head|tail|tac|less|more|column|diff|tar|dd|md5sum|sha\w*sum"
    r"|base64|xxd|od|crontab|apt-key|wall|write|lpr)(?![\w.-])"
)
_PRINTED: Final = r"""(?:(?:-\w+\s+)*["'\\]{1,9}[^|<>]{1,200}?|[^|\n<>]{1,300}?)"""
# What echo or printf print into a program, and where the text of that program begins and ends.
PRINTED: Final = (
    ("echo |printf ",
     rf"(?<![\w.-])((?:echo|printf)\s+)({_PRINTED})(\s*\|&?\s*)(?=([^|;\n]{{1,300}}))"),
)  # fmt: skip
# A word or a command's output as the input of a program that stands before it.
FED: Final = (
    ("<<<", rf"(<<<\s*+\$?)(?!\$)({VALUE})"),
    ("<(echo |<(printf |<( echo ", r"(<\(\s*+(?:echo|printf)\s++)([^()\n]{1,300})(?=\))"),
)
# The name of a file that gets a secret: `echo x > /etc/app/token`.
REDIRECTED: Final = (
    ("echo |printf ",
     r"""(?<![\w.-])((?:echo|printf)\s+(?:-\w+\s+)*)([^|<>\n;&]{1,200}?)(\s*>{1,2}\s*["']?)(?=([\w./~-]+))"""),
    ("echo |printf ",
     r"""(?<![\w.-])((?:echo|printf)\s+(?:-\w+\s+)*)([^|<>\n;&]{1,200}?)(\s*\|\s*(?:sudo\s+)?tee\s+(?:-a\s+)?)(?=([\w./~-]+))"""),
)  # fmt: skip
# `-u bob:x`, `--creds bob:x`, `user=bob:x`, `stats auth bob:x`: option or word, name, password.
CREDENTIALS: Final = (
    ("user|auth|cred|login|u |n |a |-u|allow |digest |pass", (
        r"""(?i)(?<![\w./@-])((?:-[a-zA-Z]{0,6}[una]\s++|-u(?=\w)|--?(?:[a-z]+-){0,3}(?:user(?:name|pwd|pass)?|auth"""
        r"""|creds?|credentials?|login)(?:\s++|=)|(?:[\w-]+[._-])?(?:user(?:name|pass|pwd)?|auth|login"""
        r"""|creds?|credentials?|userpass)["']?(?:\s?=\s?|:\s)|(?:(?:stats\s+)?auth|allow|digest|credentials"""
        r"""|basicauth)\s+)["'\\]{0,9}([\w.@+\\-]{1,64}):)(?!//)("""
        r"""(?<=['"]\w:)[^"'\\]{3,}+|[^\s"'\\;|&,]{2,}+)"""
    )),
)  # fmt: skip
# Groups of a user, as in `--user bob:users`.
GROUPS: Final = re.compile(
    r"(?i)(?:\d+|root|users?|staff|wheel|adm|sudo|admin|docker|daemon|www-data|nogroup|nobody|audio"
    r"|video|plugdev|input|kvm|tty|disk|mail|games|systemd-\S+|all|any|none|latest|\d[\d.:/-]*\w{0,3})"
)
PASSWORD_AFTER_PERCENT: Final = (
    ("%",
     r"""(?<![\w./-])((?:-[UAa]\s*|--(?:user|username|authentication)[=\s]\s?|(?:user|username)=)["'\\]{0,4}"""
     r"""(?:[\w.-]+[/\\]{1,2})?[\w.@$-]{1,64}%)(?!40\w)[^\s"',;|&]{2,}+"""),
    ("%", r"""(//[\w.-]+/\S+\s+[\w.-]+%)[^\s"',;|&]{2,}+"""),
)  # fmt: skip

ARGUMENT: Final = rf"""(?:"[^"]*+"|{VALUE})"""
_OPTIONS: Final = r"(?:\s+-\S++)*+"
_MORE: Final = r"[^\n;|&]{0,200}?\s"
_GIVEN: Final = r"(?:\s+--?\w[\w-]*+(?:=\S++|\s+(?!-)\S++)?){0,8}?\s+"
# Secrets at a fixed place after the name of a program or another word: their marks, and what
# stands before them.
ARGUMENTS: Final = (
    ("identified ", r"(?i:(?:user|role)\s+\S+\s+identified\s+by)",
     r"""(?i:identified\s+(?:with\s+\S+\s+)?(?:by|as)(?:\s+password)?)(?=\s+N?["'\\])"""),
    ("htpasswd ", r"htpasswd(?=(?:\s+-(?![\w]*n)\S++)*?\s+-\w*b)(?:\s+-C\s+\d+|\s+-(?!\w*n)\S++)*+\s+[^\s-]\S*+\s+\S+",
     r"htpasswd(?=(?:\s+-\S++|\s+\d+)*?\s+-\w*n)(?=(?:\s+-\S++|\s+\d+)*?\s+-\w*b)(?:\s+-\S++|\s+\d+)*+\s+\S+"),
    ("mosquitto_passwd ", rf"mosquitto_passwd(?=(?:\s+-\S++)*?\s+-\w*b){_OPTIONS}\s+\S+\s+\S+"),
    ("mysqladmin ", rf"mysqladmin{_MORE}password"),
    ("ipmitool ", rf"ipmitool{_MORE}user\s+set\s+password\s+\d+"),
    ("racadm ", rf"racadm{_MORE}\S*[Pp]assword"),
    ("ejabberdctl ", r"ejabberdctl\s+(?:register|change_password)\s+\S+\s+\S+"),
    ("prosodyctl ", r"prosodyctl\s+register\s+\S+\s+\S+"),
    ("kamctl ", r"kamctl\s+(?:add|passwd)\s+\S+"),
    ("samba-tool ", r"samba-tool\s+user\s+(?:create|add|setpassword)\s+\S+"),
    ("net user ", r"net\s+user\s+(?:/?add\s+)?[\w.\\-]+(?!\s+/)"),
    ("openssl passwd ", r"openssl\s+passwd(?:\s+-salt\s+\S++|\s+-(?!salt|in|stdin)\S++)*+"),
    ("-macopt ", r"-macopt\s+(?:hex)?key:"),
    ("mkpasswd ", r"mkpasswd(?:\s+-[mSRP]\s+\S++|\s+--\S++){0,9}+(?!\s+-)"),
    ("vault login ", r"vault\s+login(?:\s+-\S++)*+(?!\s+\w+=)"),
    ("unseal ", r"vault\s+operator\s+unseal"),
    ("authtoken ", r"ngrok\s+(?:config\s+)?(?:add-)?authtoken"),
    ("snyk auth ", r"snyk\s+auth"),
    ("cargo login ", r"cargo\s+login"),
    ("add-authtoken ", r"add-authtoken"),
    ("rclone obscure ", r"rclone\s+obscure"),
    ("alias set ", r"\b(?:mc|mcli)\s+alias\s+set\s+\S+\s+\S+\s+\S+"),
    ("user add ", r"\bmc\s+admin\s+user\s+add\s+\S+\s+\S+"),
    ("token create ", r"kubeadm\s+token\s+create"),
    ("-initial-password |-admin-password ", r"(?:set-initial|reset-admin)-password"),
    ("password |secret ", r"(?i:enable|neighbor\s+\S+|username\s+\S+(?:\s+privilege\s+\d+)?)\s+(?:password|secret)(?:\s+\d)?",
     r"(?i:IPSec\s+secret|Xauth\s+password)"),
    ("_user ", r"rabbitmqctl\s+authenticate_user\s+\S+"),
    ("user:password |upwd ", r"drush\s+(?:user:password|upwd)\s+\S+"),
    ("-createcredential ", r"-createCredential\s+\S+\s+\S+"),
    ("isql |iusql ", r"(?:isql|iusql)\s+(?:-\w\s+)*[A-Za-z][\w.-]*\s+[A-Za-z][\w.-]*(?!\s+-)"),
    ("config ", r"composer\s+config\s+(?:-\S+\s+)*http-basic\.\S+\s+\S+",
     r"poetry\s+config\s+(?:-\S+\s+)*http-basic\.\S+\s+\S+",
     r"poetry\s+config\s+(?:-\S+\s+)*pypi-token\.\S+"),
    ("radtest ", r"radtest\s+(?:-\S+\s+)*\S+", r"radtest\s+(?:-\S+\s+)*(?:\S+\s+){3}\S+"),
    ("radclient ", r"radclient\s+(?:-\S+\s+)*\S+\s+(?:auth|acct|status|coa|disconnect|auto)"),
    ("oathtool ", rf"oathtool{_OPTIONS}"),
    ("chalresp ", r"ykman\s+otp\s+chalresp\s+(?:-\w+\s+)*\d"),
    ("change-pin |change-puk ", r"change-p(?:in|uk)\s+-P", r"change-p(?:in|uk)\s+-P\s+\S+\s+-[nN]"),
    ("--setlockingrange |--initialsetup |--setsid1password |--enablelockingrange ",
     r"--(?:setlockingrange\s+\d+\s+\w\w|initialsetup|enablelockingrange\s+\d+)"),
    ("set_password ", r"set_password\s+\w+"),
    ("addauth ", r"addauth\s+digest\s+\S+?:"),
    ("wpa_passphrase ", r"""wpa_passphrase\s+(?:"[^"]*"|'[^']*'|[^\s=]+)"""),
    ("wep_key", r"wep_key\d"),
    ("key |keys ", rf"iw\s{_MORE}keys?"),
    ("iwconfig ", r"iwconfig\s+\S+\s+key"),
    ("wireless-key |wpa-psk ", r"(?:wireless-key\d?|wpa-psk)"),
    ("db2 connect ", rf"db2\s+connect{_MORE}using"),
    ("qpdf ", rf"qpdf{_MORE}--encrypt", rf"qpdf{_MORE}--encrypt\s+\S+"),
    (" login ", r"\w{1,8}\s+LOGIN\s+\S+"),
    ("addent ", r"addent\s+-password(?:\s+-\w\s+\S+)*+"),
    ("rclone config ", rf"rclone\s+config{_MORE}pass(?:word)?"),
    ("incominguser |outgoinguser ", r"""(?i:incominguser|outgoinguser)\s+"?[^\s"]+"""),
    ("com2sec |com2sec6 ", r"com2sec6?\s+\S+\s+\S+"),
    ("snmp-server community ", r"(?i:snmp-server\s+community)"),
    ("authcommunity ", r"(?i:authcommunity)\s+[\w,]+"),
    ("trap2sink |trapsink |informsink ", r"(?:trap2?sink|informsink)\s+\S+"),
    ("trapcommunity ", r"(?i:trapcommunity)"),
    ("-server key |server host |-key-string |key-string ", r"(?i:(?:tacacs|radius)-server\s+key)",
     r"(?i:(?:tacacs|radius)-server\s+host\s+\S+(?:\s+\S+){0,4}?\s+key)", r"(?i:key-string)"),
    ("message-digest-key ", r"(?i:message-digest-key\s+\d+\s+md5)"),
    ("authentication-key ", r"(?i:authentication-key)(?:\s+\d+(?:\s+\w+)?)?"),
    ("createuser ", r"createUser\s+(?:-e\s+\S+\s+)?\S+\s+\S+",
     r"createUser\s+(?:-e\s+\S+\s+)?(?:\S+\s+){3}\S+"),
    ("isakmp key ", r"(?i:isakmp\s+key)"),
    ("key 7 ", r"(?i:key\s+7)(?=\s+[0-9A-Fa-f]{6})"),
    (" nt |nt hash ", r"(?i:nt(?:\s+hash)?)(?=\s+[0-9a-fA-F]{32}\b)"),
    (" ntlm |ntlm hash ", r"(?i:ntlm(?:\s+hash)?)(?=\s+(?:0x)?[0-9a-fA-F]{32}\b)"),
    ("monitor ", r"MONITOR\s+\S+@\S+\s+\d+\s+\S+"),
    ("basicauth ", r"BasicAuth\s+\S+"),
    ("sqlconnectinfo ", r"SQLConnectInfo\s+\S+\s+\S+"),
    ("ldapbinddn ", r"LDAPBindDN\s+\S+"),
    ("quote pass ", r"(?i:quote\s+pass)"),
    ("insecure-password ", r"insecure-password"),
    ("identify ", r"(?i:nickserv\s+identify)"),
    ("hidservauth ", r"HidServAuth\s+\S+"),
    ("geniekey ", r"GenieKey"),
    ("cleartext ", r"login\s+=\s+cleartext"),
    (" des ", r"=\s+des(?=\s+[./0-9A-Za-z]{13}\b)"),
    ("carp", rf"ifconfig\s+carp\d{_MORE}pass"),
    ("-secret |-auth ", r"java\s[^\n|;]{0,300}?\s-secret", r"-auth\s+\w[\w.-]*:"),
    ("splunk ", r"(?i:authorization:\s+splunk)"),
    ("lftp |open ", rf"""(?:lftp|open)\s(?:[^\n|]{{0,200}}?\s)?-u\s*["']?[\w.@-]{{1,64}},"""),
    ("curl ", r"curl\s[^\n|]{0,300}?(?:-E|--cert|--proxy-cert)[\s=]*(?!pkcs11)[\w./~-]+:"),
    ("zip ", rf"zip{_MORE}-\w{{1,5}}P"),
    ("sshpw ", r"sshpw(?:\s+--\S++)*"),
    ("secret,", r"secret,[\w=,.-]{0,60}?data="),
    ("auth-pass ", r"sentinel\s+(?:set\s+)?auth-pass\s+\S+"),
    ("set_network ", r"set_network\s+\d+\s+(?:psk|password|sae_password|private_key_passwd)"),
    ("community6 ", r"r[ow]community6"),
    ("socks4 |socks5 ", r"socks[45]\s+[\w.:-]+\s+\d+\s+\S+"),
    ("auth test |auth login ", r"doveadm\s+auth\s+(?:test|login)\s+(?:-\S+\s+)*\S+"),
    ("authenticate ", r"AUTHENTICATE(?=\s+[\"'])"),
    ("hotp", r"HOTP\S*\s+\S+\s+\S+(?=\s+[0-9a-fA-F]{20})"),
    (" -v ", rf"iscsiadm{_MORE}\S*auth\.password(?:_in)?\s+(?:-v|--value)"),
    ("securestring ", rf"put-parameter{_MORE}SecureString{_MORE}--value"),
    ("--value ", rf"put-parameter{_MORE}--value(?=\s+\S+\s+[^\n]{{0,200}}SecureString)"),
    ("kv put |kv patch ", r"vault\s+(?:kv\s+)?(?:put|patch|write)\s+(?:-\S+\s+)*\S+\s+\w+="),
    ("kv put ", r"consul\s+kv\s+put\s+(?:-\S+\s+)*\S*(?:pass|secret|token|key|cred)\S*"),
)  # fmt: skip
