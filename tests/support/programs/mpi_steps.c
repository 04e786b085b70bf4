/* A program of the tests: MPI from C. mpi_steps ITERATIONS N: matrix products and an all-reduce,
 * a line for each iteration, and at the end one figure for all of them. */
#include <mpi.h>
#include <stdio.h>
#include <stdlib.h>

int main(int argc, char **argv)
{
    int rank, ranks, iterations = argc > 1 ? atoi(argv[1]) : 40, n = argc > 2 ? atoi(argv[2]) : 64;
    MPI_Init(&argc, &argv);
    MPI_Comm_rank(MPI_COMM_WORLD, &rank);
    MPI_Comm_size(MPI_COMM_WORLD, &ranks);
    double *a = malloc(sizeof(double) * n * n), *b = malloc(sizeof(double) * n * n);
    double *c = malloc(sizeof(double) * n * n), *sum = malloc(sizeof(double) * n * n);
    for (int i = 0; i < n * n; i++) {
        a[i] = (i % 7) / 7.0;
        b[i] = ((i + rank) % 5) / 5.0;
    }
    double begun = MPI_Wtime();
    for (int step = 1; step <= iterations; step++) {
        double before = MPI_Wtime();
        for (int i = 0; i < n; i++)
            for (int j = 0; j < n; j++) {
                double total = 0;
                for (int k = 0; k < n; k++)
                    total += a[i * n + k] * b[k * n + j];
                c[i * n + j] = total;
            }
        MPI_Allreduce(c, sum, n * n, MPI_DOUBLE, MPI_SUM, MPI_COMM_WORLD);
        double rate = 2.0 * n * n * n * ranks / (MPI_Wtime() - before) / 1e9;
        if (rank == 0) {
            printf("step %d of %d: %.4f GFLOP/s, checksum %.6e\n", step, iterations, rate, sum[1]);
            fflush(stdout);
        }
    }
    if (rank == 0)
        printf("Performance: %.4f GFLOP/s on %d ranks\n",
               2.0 * n * n * n * ranks * iterations / (MPI_Wtime() - begun) / 1e9, ranks);
    MPI_Finalize();
    return 0;
}
