/* Keeps the namespaces of a pod: waits until it is ended, and reaps children that nobody else waits for. */
#include <signal.h>
#include <stdlib.h>
#include <sys/wait.h>
#include <unistd.h>

static void end(int signal) {
    (void)signal;
    _exit(0);
}

static void reap(int signal) {
    (void)signal;
    while (waitpid(-1, NULL, WNOHANG) > 0) {
    }
}

int main(void) {
    if (sigaction(SIGINT, &(struct sigaction){.sa_handler = end}, NULL) < 0 ||
        sigaction(SIGTERM, &(struct sigaction){.sa_handler = end}, NULL) < 0 ||
        sigaction(SIGCHLD, &(struct sigaction){.sa_handler = reap, .sa_flags = SA_NOCLDSTOP}, NULL) < 0)
        return 1;
    for (;;)
        pause();
}
