"""The log line that says why a unit failed, among lines of real programs."""

import pytest

from opdbus.publishers.failure_reasons import Line, describe_reason

# Lines with words of errors that are none.
HARMLESS = r"""
0 errors, 0 warnings
Logging to '/var/log/mysql.err'
level=info msg="error handler registered"
no errors found
2024-03-01T10:00:00.000000Z mysqld_safe Logging to '/var/lib/mysql/host.err'.
2024-03-01T10:00:01.000000Z 0 [Note] InnoDB: Completed initialization; failed=0
2024-03-01T10:00:01.000000Z 0 [System] [MY-010116] [Server] /usr/sbin/mysqld (mysqld 8.0) starting
2024-03-01T10:00:01.000000Z 0 [Warning] [MY-010068] [Server] CA certificate ca.pem is self signed.
2024-03-01 10:00:00.123 UTC [812] LOG:  redirecting log output, error level is fatal
2024-03-01 10:00:00.123 UTC [812] HINT:  Future log output will appear in directory "log/errors".
nginx: the configuration file /etc/nginx/nginx.conf syntax is ok
nginx: [warn] the "user" directive makes sense only for root
using error log /var/log/nginx/error.log
error_log = /var/log/php/errors.log
[01-Mar-2024 10:00:00] NOTICE: fpm is running, pid 812, log errors = yes
INFO:root:Installed exception hook
2024-03-01 10:00:00,123 INFO sqlalchemy.engine: error translation table loaded
2024-03-01 10:00:00.123  INFO 812 --- [main] o.s.ErrorPageRegistrar : Registered error page /error
2024-03-01 10:00:00.123 DEBUG 812 --- [main] c.e.App : exception mapping: IllegalStateException
[2024-03-01T10:00:00,123][INFO ][o.e.n.Node] [host] failure detector started
{"level":"info","msg":"error reporter enabled","errors":0}
{"level":30,"time":1709287200000,"msg":"registered error middleware"}
{"severity":"INFO","message":"failed jobs: 0"}
I0301 10:00:00.123456 812 server.go:10] error budget policy loaded
ts=2024-03-01T10:00:00Z level=info component=alerts msg="loaded alert rules" failed=0
time="2024-03-01T10:00:00Z" level=debug msg="retry on error enabled" err=<nil>
time="2024-03-01T10:00:00Z" level=warning msg="deprecated option error-mode"
Connected, err=nil
exit status: error=null
status ok, last error: none
errors: 0
Errors=0 Failures=0 Skipped=0
Tests run: 12, Failures: 0, Errors: 0
0 failed, 12 passed
EXT4-fs (sda1): mounted filesystem with ordered data mode. Opts: errors=remount-ro
Starting without errors
No fatal errors or exceptions so far
Recovered from error, going on
Ignoring error of optional module
sshd: on failure the connection is closed
Loaded 12 alert rules
Fail2ban v1.0.2 started
Setting up panic handler
stderr is redirected to /tmp/x.err
Server started without any problems
error rate 0.00%
Error count: 0
never failed
Registered handler for TypeError
Error handling enabled
Writing errors to syslog
Errors are reported to the collector
Sending errors to sentry
Last error: (none)
Health check: 0 of 5 failed
5 passed, 0 failed, 0 errors in 1.2s
clean, no errors
Command line: quiet panic=10
entering critical section
Non-critical component left out
fatal: false
error tolerance 5%
LOG_LEVEL=ERROR
log level: error
log level set to ERROR
Log level is now "error"
Skipping missing optional file foo.conf
Unknown option ignored
max_connect_errors=100
OnFailure= is not set
Error(s): 0
errors=[]
errors: {}
err=""
"error": "", "status": "up"
bad blocks: 0
missing files: 0, invalid files: 0
contains no errors
does not contain errors
without a failure
error handler: default
Starting the error reporter
SMART Error Log is there
failover is enabled
config: error_reporting = E_ALL
Registered exception mapper for java.lang.IllegalStateException
errors: none
Failed: no
The error page is /srv/err.html
2024-03-01 10:00:00 INFO  ErrorHandler:31 - listening
info: error listener added
[info] 812#812: error log opened
<info> dhcp: failed over to lease 2
12:00:00.123 [main] INFO c.e.App - handling exceptions with DefaultHandler
No error
no errors, no warnings
0 error(s), 0 warning(s)
errors: 0 warnings: 0
errors=0 and warnings=0
scan finished, found 0 problems
synced with 0 missing chunks
status=0/SUCCESS error=0
err: undefined
failures: 0%, p99 12ms
Dry run ok. 0 critical, 0 high
"errorCount":0,"warningCount":0
no error was reported
Not an error: config reloaded
There were no failures in the last run
exception: false
fatal errors: 0
Zero failed units
Configuration is valid, no problems detected
Crash handler attached
Enabling error notifications
Panic mode off
Failure detection interval 5s
Fault tolerance enabled
I, [2024-03-01T10:00:00.123 #812]  INFO -- : error tracker ready
[10:00:00 INF] Exception filter added
[Info  - 10:00:00] error channel open
Checking for errors... none
unexpected: none
Sending error mails to root
stopOnError=false
named[812]: exiting (due to fatal error)
Exiting due to previous errors.
<6>error queue size 12
  throw err;
Loaded 0 failed plugins
Checking for failed migrations: none found
Watching for errors
max errors 10
3 out of 3 checks passed
worker exited with code 0
deadlock detector started
Reloading after failure: disabled
[    12.480] (II) Server terminated with error (1). Closing log file.
""".strip().splitlines()
# Lines that say why something failed.
TELLING = r"""
FATAL: configuration file "/etc/x.conf" contains errors
0 [ERROR] [Server] Can't start server: Bind on TCP/IP port: Address already in use
2024-03-01  9:59:59 0 [ERROR] InnoDB: The innodb_system data file 'ibdata1' must be writable
nginx: [emerg] bind() to 0.0.0.0:80 failed (98: Address already in use)
nginx: [emerg] unknown directive "foo" in /etc/nginx/nginx.conf:3
2024-03-01 10:00:01.123 UTC [812] FATAL:  could not create any TCP/IP sockets
2024-03-01 10:00:01.123 UTC [812] PANIC:  could not locate a valid checkpoint record
(98)Address already in use: AH00072: make_sock: could not bind to address [::]:80
AH00526: Syntax error on line 3 of /etc/apache2/apache2.conf:
ValueError: invalid literal for int() with base 10: 'x'
ModuleNotFoundError: No module named 'flask'
sqlalchemy.exc.OperationalError: could not connect to server
2024-03-01 10:00:02.123 ERROR 812 --- [main] o.s.boot.SpringApplication : Application run failed
Caused by: java.net.BindException: Address already in use
Exception in thread "main" java.lang.OutOfMemoryError: Java heap space
Error: Could not find or load main class com.example.App
SEVERE: Failed to initialize connector
panic: runtime error: invalid memory address or nil pointer dereference
2024/03/01 10:00:00 listen tcp :8080: bind: address already in use
time="2024-03-01T10:00:00Z" level=fatal msg="no configuration found"
time="2024-03-01T10:00:00Z" level=error msg="open /etc/x: permission denied"
ts=2024-03-01T10:00:00Z caller=main.go:1 level=error err="opening storage failed: lock DB directory"
{"level":"error","msg":"cannot reach database"}
{"level":60,"time":1709287200000,"msg":"port in use"}
{"severity":"CRITICAL","message":"no key"}
E0301 10:00:00.123456 812 server.go:10] failed to start
F0301 10:00:00.123456 812 server.go:10] unable to load configmap
Error: listen EADDRINUSE: address already in use :::3000
Error: Cannot find module '/srv/app/index.js'
TypeError: Cannot read properties of undefined (reading 'port')
thread 'main' panicked at src/main.rs:4:5: called `Option::unwrap()` on a `None` value
error: failed to parse config at line 3
CRITICAL:root:no database
[2024-03-01 10:00:00 +0000] [812] [ERROR] Connection in use: ('0.0.0.0', 8000)
[error] can't open /dev/x
Segmentation fault
/usr/sbin/named: could not open configuration file
open("/etc/x"): Permission denied
no such file: /etc/x.conf
Job failed with 3 errors
10 errors found
redis: # Fatal error, can't open config file
unable to resolve host
bad option in /etc/x
terminate called after throwing an instance of 'std::runtime_error'
Could not load host key: /etc/ssh/ssh_host_rsa_key
Fatal error: no configuration
version 5.0 failed to start
bind failed: 0.0.0.0:80 in use
worker 0 failed
handling request failed: eof
Clearing the cache failed
error handling request /x: EOF
invalid format of key
unknown type in line 3
missing file
error logging in: bad password
I/O error on device
no such file error
error: no such user
Error response from daemon: no space left on device
ERROR 1045 (28000): Access denied for user 'root'@'localhost'
ERROR 2002 (HY000): Can't connect to local MySQL server
[client] ERROR: port 0 is invalid
level=error msg="0 of 3 replicas are ready"
Exception: no handlers for x
ImportError: cannot import name 'x'
E: Unable to locate package
[FATAL] [DBT-50000] Unable to check for available memory.
FAILED: could not open x
fatal: not a git repository
Error [ERR_MODULE_NOT_FOUND]: Cannot find package 'x'
npm ERR! code ELIFECYCLE
UnhandledPromiseRejectionWarning: Error: connect ECONNREFUSED 127.0.0.1:5432
haproxy: [ALERT] 060/100000 (812) : Starting frontend http: cannot bind socket [0.0.0.0:80]
[crit] (13)Permission denied: AH00091: apache2: could not open error log file /var/log/error.log.
mount: /mnt: wrong fs type, bad option, bad superblock on /dev/sdb1
dnsmasq: failed to create listening socket for port 53: Address already in use
named[812]: loading configuration: unexpected token
-- ERROR: no pidfile given
Main process failed, no output
Cannot start: no errors were logged before
E, [2024-03-01T10:00:00.123 #812] ERROR -- : bind failed
[10:00:00 ERR] Host terminated
[10:00:00 FTL] cannot bind
uncaught exception: database closed
1 error
failed: 1
errors: 01
error: 0x80070005
Errors: 3, Warnings: 0
no errors but 2 failures
Unable to fix permission problems
could not handle exception
failed to recover from errors
config error: off by one
Assertion `x != NULL' failed.
*** stack smashing detected ***: terminated
Aborted (core dumped)
kernel: Out of memory: Killed process 812 (mysqld)
Failed at step EXEC spawning /srv/x: No such file or directory
[    12.400] (EE) No devices detected.
app: unrecognized option '--foo'
Fehler: Datei nicht gefunden: /etc/x.conf
Erreur : impossible d'ouvrir le fichier
Ошибка: файл не найден
Not configured to listen on any interfaces!
relation "users" does not exist
assertion failed: x > 0
deadlock detected, giving up
out of file descriptors
another instance is running
main.lua:12: attempt to index a nil value (global 'cfg')
run-parts: /etc/cron.daily/x exited with return code 1
Undefined subroutine &main::foo called at /srv/x line 3.
certificate has expired
Watching /etc for errors failed
""".strip().splitlines()


def _reason(*texts: str) -> str:
    return describe_reason("exit-code", [Line(text, 6) for text in texts])


@pytest.mark.parametrize("harmless", HARMLESS)
def test_a_harmless_line_never_hides_a_telling_one(harmless: str) -> None:
    """A line that only has the words of errors is no reason, before and after one that is."""
    for telling in TELLING:
        assert _reason(harmless, telling, harmless) == telling
    assert _reason(harmless, "the last line") == "the last line"


def test_the_levels_of_lines() -> None:
    """A level counts more than words, and a warning is a reason where there is no error."""
    assert _reason("level=info msg=started", "x: cannot bind", "level=error msg=end") == (
        "level=error msg=end"
    )
    assert _reason("WARNING: cannot read a", "starting") == "WARNING: cannot read a"
    assert _reason("WARNING: cannot read a", "cannot read b") == "cannot read b"
    error = [Line("of priority err", 3), Line("error: x", 6)]
    assert describe_reason("exit-code", error) == "of priority err"
    harmless = [Line("no errors found", 3), Line("cannot bind", 6)]
    assert describe_reason("exit-code", harmless) == "cannot bind"


@pytest.mark.parametrize(
    "sequence",
    [
        "\x1b[31m",
        "\x1b[1;38;5;9m",
        "\x9b31m",
        "\x1b(B",
        "\x1b]0;title\x07",
        "#033[31m",
        r"\x1b[31m",
    ],
)
def test_control_sequences_do_not_count(sequence: str) -> None:
    """A word in colour is the word, and its colour is not shown."""
    assert _reason(f"{sequence}FATAL\x1b[0m: no database", "bye") == "FATAL: no database"
