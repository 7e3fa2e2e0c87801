// Returns early when a check fails, and forgets the buffer. With --fixed it is freed.
#include <cstdio>
#include <cstring>
#include <chrono>
#include <thread>
#include <vector>
#include <cuda_runtime.h>

static bool is_fixed;

static bool check(const float*, int step) { return step % 2 == 0; }

static void process(int step) {
    float* buffer = nullptr;
    cudaMalloc(&buffer, 1 << 20);  // leaks here
    cudaMemset(buffer, 0, 1 << 20);
    if (!check(buffer, step)) {
        if (is_fixed) cudaFree(buffer);
        return;
    }
    cudaFree(buffer);
}

static void measure() {
    cudaEvent_t event;
    cudaEventCreate(&event);  // leaks here
    cudaEventRecord(event);
    if (is_fixed) cudaEventDestroy(event);
}

int main(int argc, char** argv) {
    double seconds = 150;
    for (int i = 1; i < argc; ++i) {
        if (!strcmp(argv[i], "--fixed")) is_fixed = true;
        if (!strcmp(argv[i], "--seconds")) sscanf(argv[++i], "%lf", &seconds);
    }
    auto end = std::chrono::steady_clock::now() + std::chrono::duration<double>(seconds);
    for (int step = 0; std::chrono::steady_clock::now() < end; ++step) {
        process(step);
        measure();
        if (step == 10) {
            puts("READY");
            fflush(stdout);
        }
        std::this_thread::sleep_for(std::chrono::milliseconds(50));
    }
}
