// Times cudaMalloc and cudaFree in a loop, in blocks, to measure the cost of tracing.
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <sys/time.h>

int main(int argc, char **argv)
{
	double seconds = argc > 1 ? atof(argv[1]) : 8;
	auto clock = [] {
		timeval now;
		gettimeofday(&now, nullptr);
		return now.tv_sec + now.tv_usec * 1e-6;
	};
	void *p;

	cudaFree(nullptr);
	printf("READY\n");
	fflush(stdout);
	for (double end = clock() + seconds; clock() < end;) {
		double begin = clock();
		for (int i = 0; i < 2000; i++) {
			if (cudaMalloc(&p, 2048) != cudaSuccess || cudaFree(p) != cudaSuccess)
				return 1;
		}
		printf("STEP [%f, %.9f]\n", begin, (clock() - begin) / 2000);
		fflush(stdout);
	}
	return 0;
}
