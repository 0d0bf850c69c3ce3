/* Starts one program in namespaces and a root folder of its own, as a container runtime would.
 *
 * usage: enter MODE ROOT [WORD…] -- [NAME=VALUE…] -- PROGRAM [ARGUMENT…]
 *   MODE   words joined by '+': mount, pid, user (user: without being root)
 *   ROOT   folder that becomes /
 *   WORD…  carried out in order: ro SOURCE TARGET | rw SOURCE TARGET (bind mounts; targets are made) | proc
 * The program gets exactly the given environment. It ends with us, however we end; its status is ours, 128 + signal
 * where a signal ended it. 125 with a line on standard error: the program was not started.
 */
#include <errno.h>
#include <fcntl.h>
#include <linux/capability.h>
#include <sched.h>
#include <signal.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mount.h>
#include <sys/prctl.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#define OLD_ROOT "/.host"

static pid_t child;

static void fail(const char *what, const char *which) {
    fprintf(stderr, "enter: %s %s: %s\n", what, which, strerror(errno));
    exit(125);
}

static void require(int result, const char *what, const char *which) {
    if (result != 0) {
        fail(what, which);
    }
}

static void write_file(const char *path, const char *format, ...) {
    char text[64];
    va_list arguments;
    va_start(arguments, format);
    int length = vsnprintf(text, sizeof text, format, arguments);
    va_end(arguments);
    int fd = open(path, O_WRONLY | O_CLOEXEC);
    if (fd < 0 || write(fd, text, (size_t)length) != length) {
        fail("write", path);
    }
    close(fd);
}

static void pass_on(int number) {
    kill(child, number);
}

/* In a pid namespace the program has to be a child, number 1 there; the parent only passes signals and the status. */
static void become_first_process(void) {
    child = fork();
    if (child < 0) {
        fail("fork", "");
    }
    if (child == 0) {
        return;
    }
    struct sigaction action = {.sa_handler = pass_on, .sa_flags = SA_RESTART};
    sigaction(SIGTERM, &action, NULL);
    sigaction(SIGINT, &action, NULL);
    int status = 0;
    while (waitpid(child, &status, 0) < 0 && errno == EINTR) {
    }
    exit(WIFSIGNALED(status) ? 128 + WTERMSIG(status) : WEXITSTATUS(status));
}

static void leave_namespaces(const char *mode) {
    uid_t uid = getuid();
    gid_t gid = getgid();
    int flags = CLONE_NEWNS;
    flags |= strstr(mode, "user") != NULL ? CLONE_NEWUSER : 0;
    flags |= strstr(mode, "pid") != NULL ? CLONE_NEWPID : 0;
    require(unshare(flags), "namespaces", mode);
    if ((flags & CLONE_NEWUSER) != 0) {
        write_file("/proc/self/setgroups", "deny");
        write_file("/proc/self/uid_map", "0 %u 1\n", uid);
        write_file("/proc/self/gid_map", "0 %u 1\n", gid);
    }
    prctl(PR_SET_PDEATHSIG, SIGKILL); /* after unshare: new credentials clear it */
    if ((flags & CLONE_NEWPID) != 0) {
        become_first_process();
        prctl(PR_SET_PDEATHSIG, SIGKILL);
    }
}

/* What container runtimes leave to root by default; without the rest nobody inside can undo a mount. */
static void drop_capabilities(void) {
    static const int kept[] = {CAP_CHOWN,  CAP_DAC_OVERRIDE, CAP_FSETID,  CAP_FOWNER,     CAP_MKNOD,
                               CAP_SETGID, CAP_NET_RAW,      CAP_SETUID,  CAP_SETFCAP,    CAP_NET_BIND_SERVICE,
                               CAP_KILL,   CAP_SYS_CHROOT,   CAP_SETPCAP, CAP_AUDIT_WRITE};
    for (int capability = 0; prctl(PR_CAPBSET_READ, capability) >= 0; capability++) {
        int keep = 0;
        for (size_t i = 0; i < sizeof kept / sizeof *kept; i++) {
            keep = keep || kept[i] == capability;
        }
        if (!keep) {
            require(prctl(PR_CAPBSET_DROP, capability), "drop", "capability");
        }
    }
}

static void change_root(const char *root) {
    char old[4096];
    snprintf(old, sizeof old, "%s" OLD_ROOT, root);
    require(mount(NULL, "/", NULL, MS_REC | MS_PRIVATE, NULL), "private mounts", "/");
    require(mount(root, root, NULL, MS_BIND | MS_REC, NULL), "bind", root);
    if (mkdir(old, 0755) != 0 && errno != EEXIST) {
        fail("mkdir", old);
    }
    require((int)syscall(SYS_pivot_root, root, old), "pivot_root", root);
    require(chdir("/"), "chdir", "/");
}

/* The target as a folder or an empty file, with the folders above it. */
static void make_target(const char *target, int is_folder) {
    char path[4096];
    snprintf(path, sizeof path, "%s", target);
    for (char *slash = strchr(path + 1, '/'); slash != NULL; slash = strchr(slash + 1, '/')) {
        *slash = '\0';
        if (mkdir(path, 0755) != 0 && errno != EEXIST) {
            fail("mkdir", path);
        }
        *slash = '/';
    }
    struct stat there;
    if (stat(path, &there) == 0) {
        return;
    }
    int fd = -1;
    if (is_folder ? mkdir(path, 0755) != 0 : (fd = open(path, O_WRONLY | O_CREAT | O_CLOEXEC, 0644)) < 0) {
        fail("make", path);
    }
    if (fd >= 0) {
        close(fd);
    }
}

static void bind(const char *source, const char *target, int read_only) {
    char from[4096];
    struct stat facts;
    snprintf(from, sizeof from, OLD_ROOT "%s", source);
    require(stat(from, &facts), "no such source", source);
    make_target(target, S_ISDIR(facts.st_mode));
    require(mount(from, target, NULL, MS_BIND | MS_REC, NULL), "bind", target);
    if (read_only) {
        struct statvfs now;
        require(statvfs(target, &now), "statvfs", target);
        unsigned long keep = now.f_flag & (MS_NOSUID | MS_NODEV | MS_NOEXEC | MS_NOATIME | MS_NODIRATIME);
        keep |= (now.f_flag & ST_RELATIME) != 0 ? MS_RELATIME : 0;
        require(mount(NULL, target, NULL, MS_REMOUNT | MS_BIND | MS_RDONLY | keep, NULL), "read-only", target);
    }
}

/* Carries out the words up to "--" and returns what follows it. */
static char **set_up(char **word) {
    while (*word != NULL && strcmp(*word, "--") != 0) {
        if (strcmp(*word, "proc") == 0) {
            make_target("/proc", 1);
            require(mount("proc", "/proc", "proc", MS_NOSUID | MS_NODEV | MS_NOEXEC, NULL), "mount", "/proc");
            word++;
        } else if (word[1] != NULL && word[2] != NULL) {
            bind(word[1], word[2], strcmp(*word, "ro") == 0);
            word += 3;
        } else {
            errno = EINVAL;
            fail("statement", *word);
        }
    }
    return *word == NULL ? word : word + 1;
}

int main(int argc, char **argv) {
    if (argc < 4) {
        fprintf(stderr, "usage: enter MODE ROOT [WORD...] -- [NAME=VALUE...] -- PROGRAM [ARGUMENT...]\n");
        return 125;
    }
    leave_namespaces(argv[1]);
    change_root(argv[2]);
    char **environment = set_up(argv + 3);
    char **program = environment;
    while (*program != NULL && strcmp(*program, "--") != 0) {
        program++;
    }
    if (*program == NULL || program[1] == NULL) {
        fprintf(stderr, "enter: no program\n");
        return 125;
    }
    *program++ = NULL;
    require(umount2(OLD_ROOT, MNT_DETACH), "umount", OLD_ROOT);
    rmdir(OLD_ROOT);
    drop_capabilities();
    execve(*program, program, environment);
    fail("start", *program);
}
