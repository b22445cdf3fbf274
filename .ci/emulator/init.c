/* The emulated machine's first process: runs /program, and turns the machine off.
 *
 * /arguments and /environment hold the program's, each ended by a zero byte.
 * Standard output goes to the first serial port, standard error to the second;
 * the exit code follows on the third, as text. */
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/io.h>
#include <sys/mount.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <termios.h>
#include <unistd.h>

#define MOST 256 /* arguments, and variables of the environment */
#define OFF_PORT 0x8900 /* Bochs ends once it reads "Shutdown" here */

static char *arguments[MOST + 1], *environment[MOST + 1];

static void fail(const char *what) {
    perror(what);
    exit(1); /* the kernel panics, and the run says so */
}

/* The strings of a file, in `list`. */
static void read_strings(const char *path, char **list) {
    FILE *file = fopen(path, "r");
    if (!file) fail(path);
    char *text = NULL;
    size_t room = 0, n = 0;
    while (getdelim(&text, &room, 0, file) > 0) {
        if (n == MOST) fail(path);
        list[n++] = text;
        text = NULL;
        room = 0;
    }
    fclose(file);
}

/* A serial port that passes bytes on as they are. */
static int open_port(const char *path) {
    int port = open(path, O_RDWR | O_NOCTTY);
    struct termios settings;
    if (port < 0 || tcgetattr(port, &settings) != 0) fail(path);
    cfmakeraw(&settings);
    settings.c_cflag |= CLOCAL;
    cfsetspeed(&settings, B115200);
    if (tcsetattr(port, TCSANOW, &settings) != 0) fail(path);
    return port;
}

int main(void) {
    mkdir("/dev", 0755), mkdir("/proc", 0755), mkdir("/sys", 0755), mkdir("/tmp", 01777);
    if (mount("none", "/dev", "devtmpfs", 0, NULL) != 0) fail("/dev");
    if (mount("none", "/proc", "proc", 0, NULL) != 0) fail("/proc");
    if (mount("none", "/sys", "sysfs", 0, NULL) != 0) fail("/sys");
    read_strings("/arguments", arguments);
    read_strings("/environment", environment);
    int output = open_port("/dev/ttyS0"), errors = open_port("/dev/ttyS1"), code = open_port("/dev/ttyS2");

    pid_t child = fork();
    if (child < 0) fail("fork");
    if (child == 0) {
        dup2(open("/dev/null", O_RDONLY), 0);
        dup2(output, 1);
        dup2(errors, 2);
        execve("/program", arguments, environment);
        perror("/program");
        _exit(127);
    }
    int status;
    if (waitpid(child, &status, 0) != child) fail("waitpid");
    dprintf(code, "%d\n", WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status));
    tcdrain(output), tcdrain(errors), tcdrain(code);
    if (iopl(3) != 0) fail("iopl");
    for (const char *letter = "Shutdown"; *letter; letter++) outb(*letter, OFF_PORT);
    return 1;
}
