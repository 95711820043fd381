/* The function of function.c as a program, for chains whose functions are isolated. */
#include "tailwater_nf.h"

int main(int argc, char **argv) {
    return tailwater_nf_run(&tailwater_function, argc, argv);
}
