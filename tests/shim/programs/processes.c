/* Cases between processes: fork, exec, exit without handlers, memory shared by handle. */
#include "scenario.h"

#include <sched.h>
#include <signal.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

static int status_of(pid_t child) {
    int status = -1;
    waitpid(child, &status, 0);
    return WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
}

/* A child that never touches CUDA leaves, by exit handlers or without: the parent keeps what it holds. */
static void fork_leaves_parent(void) {
    begin();
    CUdeviceptr pointer;
    CHECK(cuMemAlloc_v2(&pointer, 32 * MIB));
    for (int way = 0; way < 3; way++) {
        pid_t child = way == 2 ? (pid_t)syscall(SYS_clone, SIGCHLD, 0, 0, 0, 0) : fork();
        if (child == 0) {
            way == 0 ? exit(0) : _exit(0);
        }
        EXPECT(status_of(child) == 0);
        EXPECT(used() == 32 * MIB);
    }
    CHECK(cuMemFree_v2(pointer));
    EXPECT(used() == 0);
}

/* The child of an initialised process cannot use CUDA; what it tries changes nothing in the parent. */
static void fork_child_tries(void) {
    begin();
    CUdeviceptr pointer;
    CHECK(cuMemAlloc_v2(&pointer, 32 * MIB));
    pid_t child = fork();
    if (child == 0) {
        CUdeviceptr other;
        EXPECT_CODE(cuMemFree_v2(pointer), CUDA_ERROR_NOT_INITIALIZED);
        EXPECT(cuMemAlloc_v2(&other, MIB) != CUDA_SUCCESS);
        exit(0);
    }
    EXPECT(status_of(child) == 0);
    EXPECT(used() == 32 * MIB);
    CHECK(cuMemFree_v2(pointer));
    EXPECT(used() == 0);
}

/* Children forked before CUDA start are members of their own; the sum of all is what everyone sees. */
static void fork_before_init(void) {
    int ready[2];
    int leave[2];
    EXPECT(pipe(ready) == 0 && pipe(leave) == 0);
    for (int i = 0; i < 4; i++) {
        if (fork() == 0) {
            alarm(200);
            char byte = 1;
            CUdeviceptr pointer;
            begin();
            CHECK(cuMemAlloc_v2(&pointer, 8 * MIB));
            EXPECT(write(ready[1], &byte, 1) == 1);
            EXPECT(read(leave[0], &byte, 1) == 1);
            _exit(0);
        }
    }
    char bytes[4];
    for (int i = 0; i < 4; i++) {
        EXPECT(read(ready[0], bytes, 1) == 1);
    }
    begin();
    EXPECT(used() == 32 * MIB);
    EXPECT(write(leave[1], bytes, 4) == 4);
    for (int i = 0; i < 4; i++) {
        wait(NULL);
    }
    CUdeviceptr all;
    CHECK(cuMemAlloc_v2(&all, 100 * MIB));
    EXPECT(used() == 100 * MIB);
}

/* More processes than the region has places (1024): the late ones are told by an error, nobody hangs, and when they are
 * gone the places are free again. */
static void more_processes_than_places(void) {
    enum { COUNT = 1030 };
    int done[2];
    int leave[2];
    char byte = 0;
    long joined = 0;
    EXPECT(pipe(done) == 0 && pipe(leave) == 0);
    for (int i = 0; i < COUNT; i++) {
        if (fork() == 0) {
            CUcontext context;
            CUdeviceptr pointer;
            byte = cuInit(0) == CUDA_SUCCESS && cuDevicePrimaryCtxRetain(&context, 0) == CUDA_SUCCESS &&
                   cuCtxSetCurrent(context) == CUDA_SUCCESS && cuMemAlloc_v2(&pointer, 4096) == CUDA_SUCCESS;
            close(leave[1]);
            EXPECT(write(done[1], &byte, 1) == 1);
            EXPECT(read(leave[0], &byte, 1) == 0);
            _exit(0);
        }
    }
    for (int i = 0; i < COUNT; i++) {
        EXPECT(read(done[0], &byte, 1) == 1);
        joined += byte;
    }
    close(leave[1]);
    for (int i = 0; i < COUNT; i++) {
        int status = -1;
        wait(&status);
        EXPECT(WIFEXITED(status));
    }
    EXPECT(joined == 1024);
    begin();
    EXPECT(used() == 0);
}

/* What the image before exec held is gone with it. The limit of the test is 100 MiB. */
static void exec_forgets(void) {
    begin();
    CUdeviceptr pointer;
    CHECK(cuMemAlloc_v2(&pointer, 80 * MIB));
    execl("/proc/self/exe", "processes", "after_exec", (char *)NULL);
    EXPECT(0);
}

static void after_exec(void) {
    begin();
    CUdeviceptr pointer;
    CHECK(cuMemAlloc_v2(&pointer, 80 * MIB));
    EXPECT(used() == 80 * MIB);
}

static void vfork_exec(void) {
    begin();
    CUdeviceptr pointer;
    CHECK(cuMemAlloc_v2(&pointer, 32 * MIB));
    pid_t child = vfork();
    if (child == 0) {
        execl("/bin/true", "true", (char *)NULL);
        _exit(9);
    }
    EXPECT(status_of(child) == 0);
    EXPECT(used() == 32 * MIB);
}

/* One process pays for memory that two of the container use. */
static void ipc_charged_once(void) {
    int to_child[2];
    int to_parent[2];
    EXPECT(pipe(to_child) == 0 && pipe(to_parent) == 0);
    pid_t child = fork();
    if (child == 0) {
        CUipcMemHandle handle;
        CUdeviceptr opened;
        begin();
        EXPECT(read(to_child[0], &handle, sizeof handle) == sizeof handle);
        CHECK(cuIpcOpenMemHandle_v2(&opened, handle, 1));
        EXPECT(used() == 48 * MIB);
        CHECK(cuIpcCloseMemHandle(opened));
        EXPECT(used() == 48 * MIB);
        _exit(0);
    }
    CUipcMemHandle handle;
    CUdeviceptr pointer;
    begin();
    CHECK(cuMemAlloc_v2(&pointer, 48 * MIB));
    CHECK(cuIpcGetMemHandle(&handle, pointer));
    EXPECT(write(to_child[1], &handle, sizeof handle) == sizeof handle);
    EXPECT(status_of(child) == 0);
    EXPECT(used() == 48 * MIB);
}

static void send_descriptor(int socket, int fd) {
    char byte = 0;
    char control[CMSG_SPACE(sizeof fd)] = {0};
    struct iovec data = {.iov_base = &byte, .iov_len = 1};
    struct msghdr message = {
        .msg_iov = &data, .msg_iovlen = 1, .msg_control = control, .msg_controllen = sizeof control};
    struct cmsghdr *header = CMSG_FIRSTHDR(&message);
    header->cmsg_level = SOL_SOCKET;
    header->cmsg_type = SCM_RIGHTS;
    header->cmsg_len = CMSG_LEN(sizeof fd);
    memcpy(CMSG_DATA(header), &fd, sizeof fd);
    EXPECT(sendmsg(socket, &message, 0) == 1);
}

static int receive_descriptor(int socket) {
    char byte;
    int fd = -1;
    char control[CMSG_SPACE(sizeof fd)];
    struct iovec data = {.iov_base = &byte, .iov_len = 1};
    struct msghdr message = {
        .msg_iov = &data, .msg_iovlen = 1, .msg_control = control, .msg_controllen = sizeof control};
    EXPECT(recvmsg(socket, &message, 0) == 1);
    memcpy(&fd, CMSG_DATA(CMSG_FIRSTHDR(&message)), sizeof fd);
    return fd;
}

/* NCCL's way: a handle made in one process, imported and mapped in another, charged to the maker. */
static void vmm_import_charged_once(void) {
    int ends[2];
    EXPECT(socketpair(AF_UNIX, SOCK_STREAM, 0, ends) == 0);
    pid_t child = fork();
    if (child == 0) {
        CUmemGenericAllocationHandle handle;
        CUdeviceptr at;
        begin();
        int fd = receive_descriptor(ends[1]);
        CHECK(cuMemImportFromShareableHandle(&handle, (void *)(intptr_t)fd, CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR));
        CHECK(cuMemAddressReserve(&at, 16 * MIB, 0, 0, 0));
        CHECK(cuMemMap(at, 16 * MIB, 0, handle, 0));
        CHECK(cuMemRelease(handle));
        EXPECT(used() == 16 * MIB);
        CHECK(cuMemUnmap(at, 16 * MIB));
        EXPECT(used() == 16 * MIB);
        _exit(0);
    }
    CUmemAllocationProp props = {.type = CU_MEM_ALLOCATION_TYPE_PINNED,
                                 .requestedHandleTypes = CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR,
                                 .location = {.type = CU_MEM_LOCATION_TYPE_DEVICE, .id = 0}};
    CUmemGenericAllocationHandle handle;
    int fd;
    begin();
    CHECK(cuMemCreate(&handle, 16 * MIB, &props, 0));
    CHECK(cuMemExportToShareableHandle(&fd, handle, CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR, 0));
    send_descriptor(ends[0], fd);
    EXPECT(status_of(child) == 0);
    EXPECT(used() == 16 * MIB);
    CHECK(cuMemRelease(handle));
    EXPECT(used() == 0);
}

static const struct scenario scenarios[] = {
    {"fork_leaves_parent", fork_leaves_parent},
    {"fork_child_tries", fork_child_tries},
    {"fork_before_init", fork_before_init},
    {"more_processes_than_places", more_processes_than_places},
    {"exec_forgets", exec_forgets},
    {"after_exec", after_exec},
    {"vfork_exec", vfork_exec},
    {"ipc_charged_once", ipc_charged_once},
    {"vmm_import_charged_once", vmm_import_charged_once},
};

int main(int argc, char **argv) {
    alarm(200);
    return run_scenario(scenarios, sizeof scenarios / sizeof scenarios[0], argc, argv);
}
