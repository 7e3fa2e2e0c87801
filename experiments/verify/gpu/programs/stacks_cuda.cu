// Allocates through the CUDA runtime from a C++ class template, on the main thread and on another.
#include <cstdio>
#include <thread>
#include <unistd.h>
#include <vector>

template <typename T> class Buffer {
    public:
	explicit Buffer(size_t count)
	{
		cudaMalloc(&pointer, count * sizeof(T));
	}

    private:
	T *pointer = nullptr;
};

struct Worker {
	std::vector<Buffer<float>> kept;

	void step(size_t count)
	{
		kept.emplace_back(count);
	}
};

static void run(const char *name, size_t count)
{
	Worker worker;

	for (int number = 0; number < 100; number++) {
		worker.step(count);
		usleep(100000);
	}
	printf("%s done\n", name);
}

int main()
{
	cudaFree(nullptr);
	printf("READY\n");
	fflush(stdout);
	std::thread other(run, "thread", 1 << 20);
	run("main", 1 << 18);
	other.join();
	return 0;
}
