#include "src/run/comm/nccl/wire.h"

#include <atomic>
#include <functional>
#include <mutex>
#include <thread>

#include <c10/cuda/CUDAStream.h>
#include <fmt/format.h>
#include <nccl.h>

#include "paradyse/plan/detail/index.h"
#include "paradyse/run/communicator.h"

namespace paradyse::nccl {
namespace {

using Clock = std::chrono::steady_clock;
using std::chrono::milliseconds;

constexpr const char* kId = "nccl/id";

[[noreturn]] void fail(const char* what, ncclResult_t result, ncclComm_t comm) {
  std::string last;
  if (const char* text = ncclGetLastError(comm); text != nullptr && *text != '\0') {
    last = fmt::format(" ({})", text);
  }
  throw CommunicatorError(fmt::format(
      "nccl: {} failed: {}{}; NCCL_DEBUG=INFO says more", what, ncclGetErrorString(result), last));
}

void expect(const char* what, ncclResult_t result, ncclComm_t comm) {
  if (result != ncclSuccess && result != ncclInProgress) {
    fail(what, result, comm);
  }
}

// All that is asked of NCCL while it lives, on this thread, is one group.
class GroupCall {
 public:
  explicit GroupCall(ncclComm_t comm) : comm_(comm) {
    expect("ncclGroupStart", ncclGroupStart(), comm_);
  }
  // By end(), or by an error inside it, which says more than the group's.
  ~GroupCall() {
    if (open_) {
      ncclGroupEnd();
    }
  }
  GroupCall(const GroupCall&) = delete;
  GroupCall& operator=(const GroupCall&) = delete;

  void end() {
    open_ = false;
    expect("ncclGroupEnd", ncclGroupEnd(), comm_);
  }

 private:
  ncclComm_t comm_;
  bool open_ = true;
};

// Through once ready() says so.
class Polled final : public gloo::Message {
 public:
  explicit Polled(std::function<bool()> ready) : ready_(std::move(ready)) {}

  bool wait(milliseconds deadline) override {
    const auto begin = Clock::now();
    const auto end = begin + deadline;
    while (!stop_.load()) {
      if (ready_()) {
        return true;
      }
      const auto now = Clock::now();
      if (now > end) {
        return false;
      }
      // Most are through in microseconds; a rank that is late shall not cost a core.
      if (now - begin < milliseconds(1)) {
        std::this_thread::yield();
      } else {
        std::this_thread::sleep_for(std::chrono::microseconds(100));
      }
    }
    return false;
  }
  void abort() override { stop_.store(true); }

 private:
  std::function<bool()> ready_;
  std::atomic<bool> stop_{false};
};

class NcclWire final : public Wire {
 public:
  NcclWire(gloo::Store& store, gloo::Watch& watch, int rank, int size)
      : watch_(watch), rank_(rank), size_(size) {
    const ncclUniqueId id = common_id(store);
    ncclConfig_t config = NCCL_CONFIG_INITIALIZER;
    config.blocking = 0;
    expect(
        "ncclCommInitRankConfig", ncclCommInitRankConfig(&comm_, size, id, rank, &config), comm_);
    try {
      settle("ncclCommInitRankConfig");
    } catch (...) {
      abort();
      throw;
    }
  }

  ~NcclWire() override { abort(); }  // all that matters has been waited for
  NcclWire(const NcclWire&) = delete;
  NcclWire& operator=(const NcclWire&) = delete;

  void exchange(const std::vector<Chunk>& sent, const std::vector<Chunk>& received) override {
    expect_open();
    const cudaStream_t stream = c10::cuda::getCurrentCUDAStream().stream();
    GroupCall group(comm_);
    for (const Chunk& chunk : received) {
      expect(
          "ncclRecv",
          ncclRecv(chunk.data, size_of(chunk), ncclUint8, chunk.rank, comm_, stream),
          comm_);
    }
    for (const Chunk& chunk : sent) {
      expect(
          "ncclSend",
          ncclSend(chunk.data, size_of(chunk), ncclUint8, chunk.rank, comm_, stream),
          comm_);
    }
    group.end();
    settle("a group of sends and receives");  // until it is on the stream: a mark can follow
  }

  std::unique_ptr<gloo::Message> passing(MarkPtr mark) override {
    return std::make_unique<Polled>([this, mark = std::move(mark)] {
      expect_open();
      ncclResult_t state = ncclSuccess;
      expect("ncclCommGetAsyncError", ncclCommGetAsyncError(comm_, &state), comm_);
      expect("an operation", state, comm_);
      return Mark::passed(mark);
    });
  }

  void abort() override {
    if (comm_ != nullptr) {
      ncclCommAbort(comm_);
      comm_ = nullptr;
    }
  }

 private:
  void expect_open() const {
    if (comm_ == nullptr) {
      throw CommunicatorError("nccl: an operation after the communicator was aborted");
    }
  }

  static std::size_t size_of(const Chunk& chunk) { return idx(chunk.bytes); }

  // Rank 0's, as text: stores keep text.
  ncclUniqueId common_id(gloo::Store& store) const {
    ncclUniqueId id{};
    if (rank_ == 0) {
      expect("ncclGetUniqueId", ncclGetUniqueId(&id), nullptr);
      std::string text;
      for (const char c : id.internal) {
        text += fmt::format("{:02x}", static_cast<unsigned char>(c));
      }
      store.set(kId, text);
      return id;
    }
    std::optional<std::string> text;
    Polled here([&] {
      text = store.get(kId);
      return text.has_value();
    });
    watch_.await(here, {.rank = 0, .where = "nccl/id", .what = "the start of NCCL"});
    if (text->size() != 2 * sizeof(id.internal) ||
        text->find_first_not_of("0123456789abcdef") != std::string::npos) {
      throw CommunicatorError(
          "nccl: rank 0 did not send a valid NCCL unique id: it runs another program or another "
          "version; start the same program on all machines");
    }
    for (std::size_t i = 0; i < sizeof(id.internal); ++i) {
      id.internal[i] = static_cast<char>(std::stoi(text->substr(2 * i, 2), nullptr, 16));
    }
    return id;
  }

  // What was asked of the communicator is under way.
  void settle(const char* what) {
    Polled done([&] {
      ncclResult_t state = ncclInProgress;
      expect(what, ncclCommGetAsyncError(comm_, &state), comm_);
      expect(what, state, comm_);
      return state == ncclSuccess;
    });
    // Whom it waits for is not known: rank 0, or the next one.  Ranks in different places must not
    // look as if they disagreed about one.
    watch_.await(done, {.rank = rank_ == 0 ? 1 % size_ : 0, .where = what, .what = what});
  }

  gloo::Watch& watch_;
  int rank_;
  int size_;
  ncclComm_t comm_ = nullptr;
};

}  // namespace

std::unique_ptr<Wire> connect(gloo::Store& store, gloo::Watch& watch, int rank, int size) {
  return std::make_unique<NcclWire>(store, watch, rank, size);
}

}  // namespace paradyse::nccl
