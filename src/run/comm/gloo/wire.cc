#include "src/run/comm/gloo/wire.h"

#include <algorithm>
#include <csignal>
#include <exception>
#include <future>
#include <stdexcept>
#include <thread>
#include <utility>

#include <sched.h>

#define USE_DISTRIBUTED
#define USE_C10D_GLOO
#pragma GCC diagnostic push
#pragma GCC diagnostic ignored "-Wshadow"
#pragma GCC diagnostic ignored "-Wconversion"
#pragma GCC diagnostic ignored "-Wunused-parameter"
#include <torch/csrc/distributed/c10d/PrefixStore.hpp>
#include <torch/csrc/distributed/c10d/ProcessGroupGloo.hpp>
#include <torch/csrc/distributed/c10d/TCPStore.hpp>
#pragma GCC diagnostic pop
#include <c10/util/Logging.h>

#include "src/run/comm/gloo/proof.h"
#include "src/run/comm/rendezvous/sealed_off.h"

namespace paradyse::gloo {
namespace {

using std::chrono::milliseconds;

// What a store that was reached may take to answer, beside.
constexpr milliseconds kAnswer(2000);

// c10::Error would be taken for a fault of the program; its message ends in a stack trace.
template <typename Body>
auto told(const Body& body) {
  try {
    return body();
  } catch (const c10::Error& error) {
    throw std::runtime_error(error.what_without_backtrace());
  }
}

using rendezvous::ListenersSince;

std::vector<std::uint8_t> bytes_of(const std::string& text) { return {text.begin(), text.end()}; }
std::string text_of(const std::vector<std::uint8_t>& bytes) { return {bytes.begin(), bytes.end()}; }

class AgentClient final : public AgentStore {
 public:
  explicit AgentClient(c10::intrusive_ptr<c10d::Store> store) : store_(std::move(store)) {}

  void set(const std::string& key, const std::string& value) override {
    told([&] { store_->set(key, bytes_of(value)); });
  }
  std::optional<std::string> get(const std::string& key) override {
    return told([&]() -> std::optional<std::string> {
      if (!store_->check({key})) {
        return std::nullopt;
      }
      return text_of(store_->get(key));
    });
  }

 private:
  c10::intrusive_ptr<c10d::Store> store_;
};

// What Gloo asks for, of our store; it is asked again and again for what is not there yet.
class AskedStore final : public c10d::Store {
 public:
  AskedStore(std::shared_ptr<rendezvous::Store> store, milliseconds patience)
      : c10d::Store(patience), store_(std::move(store)) {}

  c10::intrusive_ptr<c10d::Store> clone() override {
    return c10::make_intrusive<AskedStore>(store_, timeout_);
  }
  void set(const std::string& key, const std::vector<std::uint8_t>& value) override {
    store_->set(key, text_of(value));
  }
  std::vector<std::uint8_t> get(const std::string& key) override {
    wait({key});
    return bytes_of(store_->get(key).value());
  }
  bool check(const std::vector<std::string>& keys) override {
    return std::all_of(
        keys.begin(), keys.end(), [&](const auto& key) { return store_->get(key).has_value(); });
  }
  void wait(const std::vector<std::string>& keys) override { wait(keys, timeout_); }
  void wait(const std::vector<std::string>& keys, const milliseconds& timeout) override {
    const auto end = std::chrono::steady_clock::now() + std::min(timeout, timeout_);
    while (!check(keys)) {
      if (std::chrono::steady_clock::now() > end) {
        throw std::runtime_error("other ranks did not publish their addresses");
      }
      std::this_thread::sleep_for(milliseconds(5));
    }
  }
  // Gloo needs none of these.
  std::int64_t add(const std::string& key, std::int64_t /*value*/) override { refuse("add", key); }
  bool deleteKey(const std::string& key) override { refuse("deleteKey", key); }
  std::int64_t getNumKeys() override { refuse("getNumKeys", ""); }

 private:
  [[noreturn]] static void refuse(const std::string& what, const std::string& key) {
    throw std::logic_error("Gloo asks its store for " + what + " " + key + ", which it never did");
  }

  std::shared_ptr<rendezvous::Store> store_;
};

// The threads that are started meanwhile wait for a core rather than take one from a thread that
// computes.  Gloo's own thread polls without sleeping while another holds a connection's lock;
// where it pushes that other off its core, as the scheduler lets a thread that wakes up, both are
// stuck for a tick of 4 ms, several times a step.
class InTheBackground {
 public:
  InTheBackground() : had_(sched_getscheduler(0)) {
    if (had_ == SCHED_OTHER) {
      set(SCHED_BATCH);
    }
  }
  ~InTheBackground() {
    if (had_ == SCHED_OTHER) {
      set(SCHED_OTHER);
    }
  }
  InTheBackground(const InTheBackground&) = delete;
  InTheBackground& operator=(const InTheBackground&) = delete;

 private:
  // Of this thread, with what it starts; where that is not allowed, all is slower and as right.
  static void set(int policy) {
    const sched_param none{};
    sched_setscheduler(0, policy, &none);
  }

  int had_;
};

// c10d logs what it also throws, with stack traces; what is thrown is told by us.
void quiet_c10d() {
  block_sigpipe();
  if (FLAGS_caffe2_log_level == 1) {  // nobody chose another
    FLAGS_caffe2_log_level = 3;
  }
}

std::pair<std::shared_ptr<AgentStore>, int> agent(
    const std::string& host, int port, milliseconds patience, bool serve) {
  quiet_c10d();
  return told([&] {
    c10d::TCPStoreOptions options;
    options.port = static_cast<std::uint16_t>(port);
    options.isServer = serve;
    options.waitWorkers = false;
    options.timeout = patience;
    auto store = c10::make_intrusive<c10d::TCPStore>(host, options);
    const int got = store->getPort();
    return std::pair<std::shared_ptr<AgentStore>, int>(
        std::make_shared<AgentClient>(std::move(store)), got);
  });
}

class WorkMessage final : public Message {
 public:
  // `bytes` names the message's memory, which the work reads or fills.
  explicit WorkMessage(c10::intrusive_ptr<c10d::Work> work) : work_(std::move(work)) {}

  bool wait(milliseconds deadline) override {
    return told([&] { return work_->wait(deadline); });
  }
  void abort() override { work_->abort(); }

 private:
  c10::intrusive_ptr<c10d::Work> work_;
};

class GlooWire final : public Wire {
 public:
  explicit GlooWire(c10::intrusive_ptr<c10d::ProcessGroupGloo> group) : group_(std::move(group)) {}

  std::unique_ptr<Message> send(
      const void* data, std::int64_t bytes, int rank, std::uint32_t tag) override {
    return told([&] {
      std::vector<at::Tensor> one = {memory(const_cast<void*>(data), bytes)};
      return std::make_unique<WorkMessage>(group_->send(one, rank, static_cast<int>(tag)));
    });
  }
  std::unique_ptr<Message> receive(
      void* data, std::int64_t bytes, int rank, std::uint32_t tag) override {
    return told([&] {
      std::vector<at::Tensor> one = {memory(data, bytes)};
      return std::make_unique<WorkMessage>(group_->recv(one, rank, static_cast<int>(tag)));
    });
  }

 private:
  static at::Tensor memory(void* data, std::int64_t bytes) {
    return at::from_blob(data, {bytes}, at::kByte);
  }

  c10::intrusive_ptr<c10d::ProcessGroupGloo> group_;
};

}  // namespace

void block_sigpipe() {
  sigset_t signals;
  sigemptyset(&signals);
  sigaddset(&signals, SIGPIPE);
  pthread_sigmask(SIG_BLOCK, &signals, nullptr);
}

std::pair<std::shared_ptr<AgentStore>, int> serve_agent() {
  return agent("127.0.0.1", 0, std::chrono::seconds(10), true);
}

// c10d's client waits for ever for the first answer of who listens there and says nothing.
std::shared_ptr<AgentStore> reach_agent(const std::string& host, int port, milliseconds patience) {
  std::promise<std::shared_ptr<AgentStore>> reached;
  std::future<std::shared_ptr<AgentStore>> store = reached.get_future();
  std::thread([=, reached = std::move(reached)]() mutable {
    try {
      reached.set_value(agent(host, port, patience, false).first);
    } catch (...) {
      reached.set_exception(std::current_exception());
    }
  }).detach();
  if (store.wait_for(patience + kAnswer) != std::future_status::ready) {
    throw std::runtime_error("the program at this address does not answer as torchrun's store");
  }
  return store.get();
}

std::unique_ptr<Wire> connect_all(
    const std::shared_ptr<Store>& store,
    int rank,
    int size,
    const std::string& address,
    const WireProof& proof,
    milliseconds patience) {
  quiet_c10d();
  return told([&] {
    auto options = c10d::ProcessGroupGloo::Options::create(patience);
    const InTheBackground device_thread;
    const ListenersSince before;
    options->devices.push_back(c10d::ProcessGroupGloo::createDeviceForHostname(address));
    options->threads = 1;  // messages need none
    auto asked = c10::make_intrusive<AskedStore>(store, patience);
    auto group = c10::make_intrusive<c10d::ProcessGroupGloo>(std::move(asked), rank, size, options);
    before.seal_off_new(address);
    auto wire = std::make_unique<GlooWire>(std::move(group));
    prove(*wire, rank, size, proof, patience);
    return wire;
  });
}

}  // namespace paradyse::gloo
