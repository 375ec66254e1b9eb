// redoxfs-keeper: holds the descriptors of a mount, and starts another daemon when one dies.
//
//     redoxfs-keeper PLACE PID LOCK SOCKET MOUNTPOINT COMMAND…
//
// PLACE       "background": leave the session of the command that mounts, and outlive it once the mount is there.
//             "foreground": this process was that command
// PID         the first daemon, a child of this process
// LOCK        the descriptor of the file of redoxfs/launch/turn.py
// SOCKET      the path of the daemon's control socket
// COMMAND     starts another daemon, whose descriptor 0 is its connection to this process
//
// Descriptor 0 is the connection to the first daemon, 1 and 2 are the log. redoxfs/launch/keeper.py is the other side
// of the connection. A daemon sends messages, which begin with a letter:
//
//     H     what to hold: descriptors, the first of them the mount's, and a text that only daemons understand. Its
//           first line has the byte of LOCK to lock, by which other commands find the keeper of a mount, and the number
//           of the mount's device
//     S     the daemon serves; the path of its control socket, if that is not SOCKET
//     L     another LOCK, with its descriptor: the file was removed
//
// Each later daemon finds one message: a line with what became of the former ones, then the text, with the descriptors.
//
// The keeper is the parent of the daemon, because only a parent learns how a process ended. It uses static memory, so
// it needs none when the machine has none left.

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/signalfd.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

enum {
    MOST_DESCRIPTORS = 128,  // redoxfs/launch/keeper.py has the same four numbers
    MOST_TEXT = 4096,
    AGAIN = 75,  // the exit code of a daemon that asks for another: EX_TEMPFAIL of sysexits.h
    LATER = 71,  // the exit code of a daemon that could not begin for want of threads, memory or files: EX_OSERR
    FIRST_PAUSE_MS = 250,  // before another try to start a daemon; each further one is twice as long
    LONGEST_PAUSE_MS = 30000,
    MOST_DEATHS = 3,
    DEATHS_WITHIN_S = 60,
    START_S = 10,  // for a daemon that is told to end before it serves
    START_BYTES = 256 << 20,  // of address space, with which any daemon can begin
    LOOK_S = 5,    // between two looks for a daemon that cannot end; two must show it
    UNMOUNT_MS = 1000,  // for an `umount -f`, which unmounts microseconds after it has ended the connection
    BETWEEN_LOOKS_MS = 10,
    // Of LOCK: the turn of the command that mounts, and the part of this process in it. turn.py has both.
    COMMAND_BYTE = 0,
    KEEPER_BYTE = 1,
};

static pid_t daemon_pid;
static int connection = 0, lock_file, signals;
static const char *socket_path, *mountpoint;
static char own_path[256];
static char **command;

static int held[MOST_DESCRIPTORS];
static int held_count;
static char text[MOST_TEXT];
static size_t text_bytes;

static bool is_foreground, is_serving, is_ending, has_crashed, looks_half_dead, is_half_dead;
static long restarts;
static long long deaths_at_s[MOST_DEATHS];
static long deaths;
static bool gives_up = true;
static char last_death[64];
static long long last_death_s;
static struct stat own_socket;
static bool has_socket;
// Between two tries to start a daemon there is none, and its pid is 0.
static long long start_at_ms, end_at_ms;
static int pause_ms;

// Copies text into a string of JSON, as far as there is room. Bytes that are no text stay as they are.
static size_t escape(char *to, size_t room, const char *text)
{
    size_t length = 0;
    for (; *text && length + 7 < room; text++) {
        if ((unsigned char)*text < 0x20)
            length += (size_t)snprintf(to + length, room - length, "\\u%04x", (unsigned)*text);
        else {
            if (*text == '"' || *text == '\\')
                to[length++] = '\\';
            to[length++] = *text;
        }
    }
    to[length] = '\0';
    return length;
}

// A line in the format of the daemon's log: text, or an object of JSON.
static void say(const char *level, const char *format, ...)
{
    static char line[2048], message[900], escaped[1400];
    struct timespec now;
    struct tm local;
    va_list arguments;
    const char *chosen = getenv("REDOXFS_KEEPER_LOG");
    clock_gettime(CLOCK_REALTIME, &now);
    localtime_r(&now.tv_sec, &local);
    va_start(arguments, format);
    vsnprintf(message, sizeof message, format, arguments);
    va_end(arguments);
    size_t length;
    if (chosen && strcmp(chosen, "json") == 0) {
        char event[400], zone[8], small[16];
        size_t at = 0;
        for (; level[at] && at < sizeof small - 1; at++)
            small[at] = (char)(level[at] | 0x20);
        small[at] = '\0';
        escape(event, sizeof event, format);
        escape(escaped, sizeof escaped, message);
        strftime(zone, sizeof zone, "%z", &local);
        length = strftime(line, sizeof line, "{\"time\": \"%Y-%m-%dT%H:%M:%S", &local);
        length += (size_t)snprintf(line + length, sizeof line - length,
                                   ".%03ld%.3s:%s\", \"level\": \"%s\", \"logger\": \"redoxfs.keeper\", "
                                   "\"event\": \"%s\", \"message\": \"%s\"}",
                                   now.tv_nsec / 1000000, zone, zone + 3, small, event, escaped);
    } else {
        length = strftime(line, sizeof line, "%Y-%m-%d %H:%M:%S", &local);
        length += (size_t)snprintf(line + length, sizeof line - length, ",%03ld %s redoxfs.keeper: %s",
                                   now.tv_nsec / 1000000, level, message);
    }
    if (length > sizeof line - 1)
        length = sizeof line - 1;
    line[length++] = '\n';
    // A full disk must not end the keeper.
    if (write(STDERR_FILENO, line, length) < 0)
        return;
}

static long long seconds(clockid_t clock)
{
    struct timespec now;
    clock_gettime(clock, &now);
    return now.tv_sec;
}

static long long now_ms(void)
{
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return now.tv_sec * 1000LL + now.tv_nsec / 1000000;
}

static void lock_byte(short kind, off_t byte)
{
    struct flock range = {.l_type = kind, .l_whence = SEEK_SET, .l_start = byte, .l_len = 1};
    if (fcntl(lock_file, F_SETLK, &range) < 0)
        say("WARNING", "cannot lock byte %lld: %s", (long long)byte, strerror(errno));
}

// Ends the process, and with it the descriptors: the kernel then answers ENOTCONN, unless a daemon lives.
static void end(int code)
{
    struct stat now;
    // A daemon that was killed leaves its socket, but that of another mount may be in its place by now.
    if (has_socket && lstat(socket_path, &now) == 0 && now.st_dev == own_socket.st_dev &&
        now.st_ino == own_socket.st_ino && now.st_ctim.tv_sec == own_socket.st_ctim.tv_sec &&
        now.st_ctim.tv_nsec == own_socket.st_ctim.tv_nsec)
        unlink(socket_path);
    _exit(code);
}

static void take_hold(const char *data, size_t bytes, const int *descriptors, int count)
{
    bool is_first = held_count == 0;
    for (int i = 0; i < held_count; i++)
        close(held[i]);
    memcpy(text, data, bytes);
    text_bytes = bytes;
    memcpy(held, descriptors, sizeof *held * (size_t)count);
    held_count = count;
    if (!is_first)
        return;
    // From here on the mount outlives the command that made it.
    if (!is_foreground)
        prctl(PR_SET_PDEATHSIG, 0);
    lock_byte(F_WRLCK, strtoll(text, NULL, 10));
    lock_byte(F_UNLCK, KEEPER_BYTE);
    send(connection, "", 1, MSG_DONTWAIT | MSG_NOSIGNAL);
}

// Take one message of the daemon. False if there is none.
static bool take_message(void)
{
    static char data[MOST_TEXT + 1];
    static union {
        char room[CMSG_SPACE(sizeof(int) * MOST_DESCRIPTORS)];
        struct cmsghdr aligned;
    } control;
    int descriptors[MOST_DESCRIPTORS], count = 0;
    struct iovec part = {data, sizeof data - 1};
    struct msghdr message = {
        .msg_iov = &part, .msg_iovlen = 1, .msg_control = control.room, .msg_controllen = sizeof control.room};
    if (connection < 0)
        return false;
    ssize_t bytes = recvmsg(connection, &message, MSG_DONTWAIT | MSG_CMSG_CLOEXEC);
    if (bytes < 0 && (errno == EAGAIN || errno == EINTR))
        return false;
    if (bytes <= 0) {
        close(connection);
        connection = -1;
        return false;
    }
    for (struct cmsghdr *at = CMSG_FIRSTHDR(&message); at; at = CMSG_NXTHDR(&message, at)) {
        if (at->cmsg_level != SOL_SOCKET || at->cmsg_type != SCM_RIGHTS)
            continue;
        count = (int)((at->cmsg_len - CMSG_LEN(0)) / sizeof(int));
        memcpy(descriptors, CMSG_DATA(at), sizeof(int) * (size_t)count);
    }
    data[bytes] = 0;
    bool is_whole = !(message.msg_flags & (MSG_TRUNC | MSG_CTRUNC));
    if (data[0] == 'H' && count && is_whole) {
        take_hold(data + 1, (size_t)bytes - 1, descriptors, count);
        return true;
    }
    if (data[0] == 'L' && count == 1 && is_whole && held_count) {
        close(lock_file);
        lock_file = descriptors[0];
        lock_byte(F_WRLCK, strtoll(text, NULL, 10));
        return true;
    }
    for (int i = 0; i < count; i++)
        close(descriptors[i]);
    if (data[0] == 'S') {
        if (bytes > 1 && (size_t)bytes <= sizeof own_path) {
            memcpy(own_path, data + 1, (size_t)bytes);
            socket_path = own_path;
        }
        is_serving = true;
        pause_ms = 0;
        if (is_foreground)
            lock_byte(F_UNLCK, COMMAND_BYTE);
        has_socket = lstat(socket_path, &own_socket) == 0;
    } else {
        say("ERROR", "cannot hold what the daemon sent: when it dies, the mount is dead");
    }
    return true;
}

// Start another daemon. False, with a line in the log, if that is not possible.
static bool start(void)
{
    static char line[128];
    static union {
        char room[CMSG_SPACE(sizeof(int) * MOST_DESCRIPTORS)];
        struct cmsghdr aligned;
    } control;
    int pair[2];
    if (socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, pair)) {
        say("ERROR", "cannot start another daemon: socketpair: %s", strerror(errno));
        return false;
    }
    int line_bytes =
        snprintf(line, sizeof line, "%ld %d %lld %s\n", restarts + 1, has_crashed, last_death_s, last_death);
    struct iovec parts[] = {{line, (size_t)line_bytes}, {text, text_bytes}};
    size_t bytes = sizeof(int) * (size_t)held_count;
    struct msghdr message = {
        .msg_iov = parts, .msg_iovlen = 2, .msg_control = control.room, .msg_controllen = CMSG_SPACE(bytes)};
    struct cmsghdr *rights = CMSG_FIRSTHDR(&message);
    rights->cmsg_level = SOL_SOCKET;
    rights->cmsg_type = SCM_RIGHTS;
    rights->cmsg_len = CMSG_LEN(bytes);
    memcpy(CMSG_DATA(rights), held, bytes);
    if (sendmsg(pair[0], &message, MSG_NOSIGNAL | MSG_DONTWAIT) < 0) {
        say("ERROR", "cannot start another daemon: sendmsg: %s", strerror(errno));
        close(pair[0]);
        close(pair[1]);
        return false;
    }
    pid_t child = fork();
    if (child < 0) {
        say("ERROR", "cannot start another daemon: fork: %s", strerror(errno));
        close(pair[0]);
        close(pair[1]);
        return false;
    }
    daemon_pid = child;
    if (daemon_pid == 0) {
        // The daemon unblocks it when it can end cleanly.
        sigset_t blocked;
        sigemptyset(&blocked);
        sigaddset(&blocked, SIGTERM);
        sigprocmask(SIG_SETMASK, &blocked, NULL);
        signal(SIGINT, SIG_IGN);
        signal(SIGHUP, SIG_IGN);
        setsid();
        dup2(pair[1], STDIN_FILENO);
        execv(command[0], command);
        say("ERROR", "%s: %s", command[0], strerror(errno));
        _exit(127);
    }
    close(pair[1]);
    connection = pair[0];
    restarts++;
    // The child has it blocked until it can end cleanly.
    if (is_ending)
        kill(daemon_pid, SIGTERM);
    return true;
}

// A limit of processes, or of open files, may be reached now and not a moment later. Programs wait meanwhile.
static void start_later(void)
{
    pause_ms = !pause_ms ? FIRST_PAUSE_MS : 2 * pause_ms < LONGEST_PAUSE_MS ? 2 * pause_ms : LONGEST_PAUSE_MS;
    start_at_ms = now_ms() + pause_ms;
    say("WARNING", "no daemon serves; trying again in %g s", pause_ms / 1e3);
}

// Whether memory is short, of the system or up to a limit. The modules of a daemon then fail in ways of their own.
static bool lacks_memory(void)
{
    void *room = mmap(NULL, START_BYTES, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    return room == MAP_FAILED || munmap(room, START_BYTES);
}

static void start_or_wait(void)
{
    start_at_ms = 0;
    if (!start())
        start_later();
}

// The kernel reports a process when its last thread has ended. One that waits for storage ends when storage answers,
// whatever signal it got. Until then nobody serves, and only the process's first thread shows that.
static void look_for_half_dead(void)
{
    char path[32], data[512];
    snprintf(path, sizeof path, "/proc/%d/stat", (int)daemon_pid);
    int file = open(path, O_RDONLY | O_CLOEXEC);
    ssize_t bytes = file < 0 ? -1 : read(file, data, sizeof data - 1);
    if (file >= 0)
        close(file);
    data[bytes < 0 ? 0 : bytes] = 0;
    // Behind the program's name, which may contain anything: proc(5).
    const char *name_end = strrchr(data, ')');
    siginfo_t ended = {0};
    bool looks = name_end && !strncmp(name_end, ") Z", 3) &&
                 !waitid(P_PID, (id_t)daemon_pid, &ended, WEXITED | WNOHANG | WNOWAIT) && !ended.si_pid;
    // A daemon that is just ending looks the same for a moment.
    is_half_dead = looks && looks_half_dead;
    looks_half_dead = looks;
    if (is_half_dead)
        say("WARNING",
            "the daemon (pid %d) is dead, but one of its threads cannot end, as when storage does not answer; "
            "programs wait until it does",
            (int)daemon_pid);
}

// Nobody serves the mount, and no daemon ever will.
static void end_daemon(int code)
{
    if (daemon_pid > 0) {
        kill(daemon_pid, SIGKILL);
        waitpid(daemon_pid, NULL, 0);
    }
    end(code);
}

// Whether the kernel has ended the connection, as an unmount does.
static bool is_over(void)
{
    struct pollfd device = {held[0], 0, 0};
    return poll(&device, 1, 0) == 1 && device.revents & POLLERR;
}

// Whether the mount is in the table of mounts: proc(5).
static bool is_mounted(void)
{
    static char data[1 << 15];
    char device[32], found[sizeof device];
    size_t kept = 0;
    ssize_t bytes;
    bool is_there = false;
    if (sscanf(text, "%*s %31s", device) != 1)
        return false;
    int file = open("/proc/self/mountinfo", O_RDONLY | O_CLOEXEC);
    if (file < 0)
        return false;
    while ((bytes = read(file, data + kept, sizeof data - 1 - kept)) > 0) {
        char *line = data;
        data[kept + (size_t)bytes] = 0;
        for (char *line_end; (line_end = strchr(line, '\n')); line = line_end + 1) {
            *line_end = 0;
            if (strstr(line, " - fuse.redoxfs ") && sscanf(line, "%*s %*s %31s", found) == 1 && !strcmp(found, device))
                is_there = true;
        }
        kept = strlen(line);
        memmove(data, line, kept);
    }
    close(file);
    return is_there;
}

// The connection has ended. `is_said`: the daemon has said so, if the mount is dead.
static void end_with_connection(int code, bool is_said)
{
    for (int waited_ms = is_said ? UNMOUNT_MS : 0; is_mounted(); waited_ms += BETWEEN_LOOKS_MS) {
        if (waited_ms >= UNMOUNT_MS) {
            if (!is_said)
                say("ERROR",
                    "the kernel has ended the connection while no daemon served, and the mount is dead; to clear it: "
                    "redoxfs umount %s",
                    mountpoint);
            end_daemon(code);
        }
        poll(NULL, 0, BETWEEN_LOOKS_MS);
    }
    say("INFO", "unmounted while no daemon served");
    end_daemon(0);
}

static void name_death(int status)
{
    static const struct {
        int number;
        const char *name;
    } names[] = {{SIGKILL, "SIGKILL"}, {SIGSEGV, "SIGSEGV"}, {SIGBUS, "SIGBUS"}, {SIGABRT, "SIGABRT"},
                 {SIGTERM, "SIGTERM"}, {SIGFPE, "SIGFPE"},   {SIGILL, "SIGILL"}, {SIGINT, "SIGINT"}};
    if (WIFEXITED(status)) {
        snprintf(last_death, sizeof last_death, "status %d", WEXITSTATUS(status));
        return;
    }
    snprintf(last_death, sizeof last_death, "signal %d", WTERMSIG(status));
    for (size_t i = 0; i < sizeof names / sizeof *names; i++)
        if (names[i].number == WTERMSIG(status))
            snprintf(last_death, sizeof last_death, "%s", names[i].name);
}

static void daemon_ended(int status)
{
    pid_t pid = daemon_pid;
    bool has_served;
    daemon_pid = 0;
    // What it sent before its end counts.
    while (take_message())
        ;
    if (connection >= 0)
        close(connection);
    connection = -1;
    has_served = is_serving;
    is_serving = looks_half_dead = is_half_dead = false;
    int code = WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
    if (code == 0)
        end(0);
    if (!held_count || (!restarts && !has_served))
        // The command that mounts still waits, and says why.
        end(code);
    if (is_over())
        // Another daemon could serve nobody.
        end_with_connection(code, WIFEXITED(status) && code != LATER && code != AGAIN);
    if (!has_served && code != LATER && code != AGAIN && lacks_memory()) {
        say("ERROR", "the daemon (pid %d) could not begin: memory is short", (int)pid);
        code = LATER;
    }
    if (code == LATER && !is_ending) {
        // It took no request, so what is known of the one before still holds.
        start_later();
        return;
    }
    has_crashed = false;
    if (code == AGAIN) {
        // If this process was told to end in the meantime, the next one unmounts and ends at once.
        say("INFO", "the daemon (pid %d) has ended, as it was asked to; starting another", (int)pid);
    } else {
        name_death(status);
        last_death_s = seconds(CLOCK_REALTIME);
        // Such a signal comes from outside, also from a kernel that is out of memory.
        int number = WIFSIGNALED(status) ? WTERMSIG(status) : 0;
        has_crashed = number != SIGKILL && number != SIGTERM && number != SIGINT;
        long long now_s = seconds(CLOCK_BOOTTIME), first_s = deaths_at_s[(deaths + 1) % MOST_DEATHS];
        deaths_at_s[deaths++ % MOST_DEATHS] = now_s;
        const char *way = WIFSIGNALED(status) ? "was killed by" : "ended with";
        if (is_ending) {
            say("ERROR", "the daemon (pid %d) %s %s; to clear the mount: redoxfs umount %s", (int)pid, way, last_death,
                mountpoint);
            end(1);
        }
        if (gives_up && deaths >= MOST_DEATHS && now_s - first_s <= DEATHS_WITHIN_S) {
            say("ERROR",
                "the daemon (pid %d) %s %s, the third in a minute; giving up: the mount is dead. Lines above may have "
                "the reason; to clear the mount: redoxfs umount %s",
                (int)pid, way, last_death, mountpoint);
            end(1);
        }
        say("ERROR", "the daemon (pid %d) %s %s; starting another", (int)pid, way, last_death);
    }
    start_or_wait();
}

static void take_signals(void)
{
    struct signalfd_siginfo one;
    while (read(signals, &one, sizeof one) == sizeof one) {
        if (one.ssi_signo != SIGCHLD) {
            if (!is_ending)
                end_at_ms = now_ms() + START_S * 1000;
            is_ending = true;
            if (daemon_pid > 0)
                kill(daemon_pid, SIGTERM);
        }
    }
    int status;
    if (daemon_pid > 0 && waitpid(daemon_pid, &status, WNOHANG) == daemon_pid)
        daemon_ended(status);
}

int main(int count, char **arguments)
{
    if (count < 7) {
        fputs("redoxfs mount runs this program\n", stderr);
        return 2;
    }
    sigset_t noticed;
    sigemptyset(&noticed);
    sigaddset(&noticed, SIGCHLD);
    sigaddset(&noticed, SIGTERM);
    sigaddset(&noticed, SIGINT);
    // A command in the foreground ends with its terminal, unless it ignores that (nohup). What is blocked is noticed even
    // if it is ignored.
    if (signal(SIGHUP, SIG_IGN) != SIG_IGN && !strcmp(arguments[1], "foreground"))
        sigaddset(&noticed, SIGHUP);
    // They reach every process of a job step.
    signal(SIGUSR1, SIG_IGN);
    signal(SIGUSR2, SIG_IGN);
    signal(SIGALRM, SIG_IGN);
    sigprocmask(SIG_BLOCK, &noticed, NULL);
    signals = signalfd(-1, &noticed, SFD_NONBLOCK | SFD_CLOEXEC);
    // It may allocate, so it is called before anything is kept.
    tzset();
    is_foreground = !strcmp(arguments[1], "foreground");
    if (!is_foreground)
        setsid();
    daemon_pid = (pid_t)strtol(arguments[2], NULL, 10);
    lock_file = (int)strtol(arguments[3], NULL, 10);
    socket_path = arguments[4];
    mountpoint = arguments[5];
    command = arguments + 6;
    // For tests that kill many daemons.
    const char *most = getenv("REDOXFS_KEEPER_DEATHS");
    gives_up = !most || strcmp(most, "0");
    fcntl(lock_file, F_SETFD, FD_CLOEXEC);
    connection = fcntl(STDIN_FILENO, F_DUPFD_CLOEXEC, 3);
    int null = open("/dev/null", O_RDONLY | O_CLOEXEC);
    if (signals < 0 || connection < 0 || null < 0 || dup2(null, STDIN_FILENO) < 0) {
        say("ERROR", "cannot begin: %s", strerror(errno));
        return 1;
    }
    close(null);
    // A daemon that died before the signals were blocked.
    take_signals();
    for (;;) {
        // Where a daemon serves, its requests would wake this process too: the device is watched only in between.
        bool is_between = !is_serving && (restarts || start_at_ms);
        struct pollfd watched[] = {{signals, POLLIN, 0}, {connection, POLLIN, 0}, {is_between ? held[0] : -1, 0, 0}};
        bool must_start = is_ending && is_between;
        long long wait_ms = is_half_dead ? -1 : LOOK_S * 1000;
        if (must_start)
            wait_ms = end_at_ms > now_ms() ? end_at_ms - now_ms() : 0;
        if (start_at_ms && (wait_ms < 0 || start_at_ms - now_ms() < wait_ms))
            wait_ms = start_at_ms > now_ms() ? start_at_ms - now_ms() : 0;
        int ready = poll(watched, 3, (int)wait_ms);
        if (ready == 0 && must_start && end_at_ms <= now_ms()) {
            say("ERROR", "the daemon (pid %d) did not start; to clear the mount: redoxfs umount %s", (int)daemon_pid,
                mountpoint);
            end_daemon(1);
        } else if (ready == 0 && start_at_ms) {
            if (now_ms() >= start_at_ms)
                start_or_wait();
        } else if (ready == 0) {
            look_for_half_dead();
        }
        if (watched[1].revents)
            take_message();
        if (is_between && !is_serving && watched[2].revents & POLLERR) {
            end_with_connection(1, false);
        }
        if (watched[0].revents)
            take_signals();
    }
}
