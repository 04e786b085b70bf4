/* Stamps of CoMD's steps, put around its own timestep() by the linker (-Wl,--wrap=timestep). */
#include <stdio.h>
#include <stdlib.h>
#include <time.h>

double __real_timestep(void *simulation, int steps, double dt);

double __wrap_timestep(void *simulation, int steps, double dt)
{
    static FILE *file;
    struct timespec now;
    double result = __real_timestep(simulation, steps, dt);
    if (!file) {
        char path[4096];
        const char *rank = getenv("PMI_RANK");
        snprintf(path, sizeof path, "%s/%s.c.stamps", getenv("STAMPS"), rank ? rank : "0");
        file = fopen(path, "w");
    }
    clock_gettime(CLOCK_REALTIME, &now);
    for (int step = 0; step < steps; step++)
        fprintf(file, "%lld\n", now.tv_sec * 1000000000LL + now.tv_nsec);
    fflush(file);
    return result;
}
