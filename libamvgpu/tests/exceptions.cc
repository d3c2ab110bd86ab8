// Threads of a C++ program throw when memory is refused, through frames of the library's callers.
#include <atomic>
#include <cstdio>
#include <cstdlib>
#include <new>
#include <thread>
#include <vector>

extern "C" int hipMalloc(void **, size_t);
extern "C" int hipMallocManaged(void **, size_t, unsigned);
extern "C" int hipFree(void *);

class Memory {
  public:
    Memory(size_t bytes, bool managed)
    {
        if (managed ? hipMallocManaged(&pointer_, bytes, 1) : hipMalloc(&pointer_, bytes))
            throw std::bad_alloc();
    }
    Memory(const Memory &) = delete;
    Memory(Memory &&other) noexcept : pointer_(other.pointer_) { other.pointer_ = nullptr; }
    ~Memory()
    {
        if (pointer_)
            hipFree(pointer_);
    }

  private:
    void *pointer_ = nullptr;
};

static std::atomic<unsigned> granted, refused;

static void fill(size_t bytes, bool managed)
{
    for (int round = 0; round < 5; round++) {
        std::vector<Memory> held;
        try {
            for (;;) {
                held.emplace_back(bytes, managed);
                granted++;
            }
        } catch (const std::bad_alloc &) {
            refused++;
        }
    }
}

int main(int, char **arguments)
{
    size_t bytes = std::strtoul(arguments[1], nullptr, 10);
    std::vector<std::thread> threads;
    for (int i = 0; i < 8; i++)
        threads.emplace_back(fill, bytes, i % 2 == 0);
    for (auto &thread : threads)
        thread.join();
    std::printf("%d %u\n", granted > 0, refused.load());
}
