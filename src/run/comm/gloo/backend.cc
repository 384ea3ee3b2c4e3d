// The `gloo` backend: this process is one rank.  Meets the others at the rendezvous, connects with
// them, and keeps both until the end.
#include "src/run/comm/gloo/backend.h"

#include <algorithm>
#include <future>
#include <map>
#include <set>
#include <string>
#include <thread>
#include <type_traits>
#include <vector>

#include <ATen/Parallel.h>
#include <fmt/format.h>
#include <fmt/ranges.h>

#include "paradyse/plan/detail/index.h"
#include "src/plan/base/disk_file.h"
#include "src/run/comm/gloo/communicator.h"
#include "src/run/comm/gloo/meeting.h"
#include "src/run/comm/rendezvous/address.h"

namespace paradyse {
namespace {

using Clock = std::chrono::steady_clock;
using std::chrono::milliseconds;

constexpr milliseconds kPause{20};       // between looks at the store
constexpr milliseconds kFarewell{1000};  // how long the rendezvous outlives a failure

std::string key(const char* name, int rank) { return fmt::format("{}/{}", name, rank); }

// The rendezvous is kept until the others have had the last word from it, or none has left for so
// long.
void await_leaving(gloo::Store& store, int ranks, milliseconds patience = kFarewell) {
  auto end = Clock::now() + patience;
  try {
    for (int r = 0; r < ranks; ++r) {
      while (!store.get(key("left", r))) {
        if (Clock::now() > end) {
          return;
        }
        std::this_thread::sleep_for(kPause);
      }
      end = Clock::now() + patience;
    }
  } catch (const std::exception&) {  // it is gone already
  }
}

bool is_bad_input(const std::exception& error) {
  return dynamic_cast<const std::invalid_argument*>(&error) != nullptr;
}

// The length of runs of equal names, where all are as long and no name comes again; else all.
int equal_runs(const std::vector<std::string>& names) {
  const auto all = static_cast<int>(names.size());
  int run = 1;
  while (run < all && names[idx(run)] == names[0]) {
    ++run;
  }
  std::set<std::string> seen;
  for (int first = 0; first < all; first += run) {
    if (first + run > all || !seen.insert(names[idx(first)]).second) {
      return all;
    }
    for (int r = first; r < first + run; ++r) {
      if (names[idx(r)] != names[idx(first)]) {
        return all;
      }
    }
  }
  return run;
}

class GlooBackend final : public Backend {
 public:
  explicit GlooBackend(
      const GlooOptions& options,
      std::string name = "gloo",
      const gloo::MakeLayer& make_layer = nullptr)
      : options_(options), name_(std::move(name)) {
    if (options.rank < 0 || options.rank >= options.size) {
      throw std::invalid_argument(
          fmt::format("gloo: rank {} of {} processes", options.rank, options.size));
    }
    const bool alone = options.secret.empty();
    address_ = options.interface.empty()
                   ? rendezvous::address_towards(options.host, options.port, /*loopback=*/alone)
                   : rendezvous::address_of_interface(options.interface);
    if (alone && !rendezvous::is_loopback(address_)) {  // others could join as ranks
      throw std::invalid_argument(
          rendezvous::without_secret(rendezvous::endpoint(address_, options.port)));
    }
    wires_.resize(idx(options.size) + 1);
    meeting_ = gloo::meet(options, options.patience);
    store_ = meeting_.store;
    rendezvous_ = rendezvous::endpoint(options.host, meeting_.port);
    lost_ =
        rendezvous_ + (options.kept_elsewhere ? "" : " (kept by rank 0, which is gone or stopped)");
    watch_.emplace(store_, options.rank, options.size, options.deadline, lost_);
    try {
      const rendezvous::Listener listener(address_);
      of_store([&] {
        store_->set(key("here", options.rank), fmt::format("{} {}", listener.port(), address_));
        return true;
      });
      await_all();
      try_peers();
      connect(options.size);
      layer_ = make_layer == nullptr ? nullptr : make_layer(*store_, *watch_);
    } catch (const std::exception& error) {
      watch_->fail(
          fmt::format("rank {} failed: {}", options.rank, message_of(error)), is_bad_input(error));
      layer_.reset();
      linger();
      throw;
    }
  }

  ~GlooBackend() override {
    layer_.reset();  // it uses the watch
    watch_.reset();
    linger();
  }

  std::string name() const override { return name_; }
  int first_rank() const override { return options_.rank; }

  // Processes at one address are on one node.
  int ranks_per_node(int ranks) const override {
    std::vector<std::string> hosts;
    hosts.reserve(idx(ranks));
    for (int r = 0; r < ranks; ++r) {
      hosts.push_back(peers_.at(r).first);
    }
    return equal_runs(hosts);
  }

  void run(int ranks, const Body& body) override {
    if (ranks < 1 || ranks > options_.size) {
      throw std::invalid_argument(fmt::format(
          "{} ranks over {}: there are {} processes, each of them a rank",
          ranks,
          name_,
          options_.size));
    }
    const int number = runs_++;
    if (options_.rank >= ranks) {
      return;
    }
    at::set_num_threads(1);
    std::unique_ptr<gloo::RankCommunicators> communicators;
    try {
      communicators = gloo::communicators(
          wire_of(ranks),
          [&]() -> gloo::Wire& { return connect(ranks); },
          *watch_,
          number,
          options_.rank,
          ranks);
      if (layer_ != nullptr) {
        communicators = layer_->over(std::move(communicators), ranks);
      }
      body(*communicators);
      communicators->finish();
    } catch (const std::exception& error) {
      fail(
          fmt::format("rank {} failed: {}", options_.rank, message_of(error)), is_bad_input(error));
      throw;
    }
  }

  void leave() override { watch_->leave(); }

  bool fail(const std::string& message, bool bad_input) override {
    watch_->fail(message, bad_input);
    return watch_->failed_first();
  }

 private:
  // What the store is asked, with a message that says who was lost.
  template <typename Ask>
  std::invoke_result_t<Ask> of_store(const Ask& ask) {
    try {
      return ask();
    } catch (const std::runtime_error& error) {
      throw CommunicatorError(
          fmt::format("rank {} lost the rendezvous at {}: {}", options_.rank, lost_, error.what()));
    }
  }

  void await_all() {
    const auto end = Clock::now() + options_.deadline;
    std::vector<int> missing;
    for (int r = 0; r < options_.size; ++r) {
      missing.push_back(r);
    }
    while (true) {
      watch_->check();
      std::erase_if(missing, [&](int r) {
        const auto here = of_store([&] { return store_->get(key("here", r)); });
        if (here) {
          peers_[r] = gloo::place_in(*here, r);
        }
        return here.has_value();
      });
      if (missing.empty()) {
        return;
      }
      if (Clock::now() > end) {
        throw CommunicatorError(fmt::format(
            "rank{} {} of {} did not connect to the rendezvous at {} within {} s: check that all "
            "processes were started with the same address and the same secret{}",
            missing.size() == 1 ? "" : "s",
            fmt::join(missing, ", "),
            options_.size,
            rendezvous_,
            seconds(options_.deadline),
            gloo::loopback_by_name(options_)));
      }
      std::this_thread::sleep_for(kPause);
    }
  }

  // Gloo itself would say neither which peer cannot be reached nor where it is.
  void try_peers() {
    for (const auto& [rank, place] : peers_) {
      const auto& [host, port] = place;
      try {
        rendezvous::await_listener(host, port, options_.patience);
      } catch (const std::runtime_error& error) {
        throw CommunicatorError(fmt::format(
            "rank {} at {} could not reach rank {} at {} within {} s ({}): check for a firewall "
            "between them. If the address belongs to another network, give an interface of the "
            "shared one with --interface",
            options_.rank,
            address_,
            rank,
            rendezvous::endpoint(host, port),
            seconds(options_.patience),
            error.what()));
      }
    }
  }

  // Between the first `ranks` processes; no two numbers of ranks share one, so that these ranks
  // alone take another when they recover.
  gloo::Wire& wire_of(int ranks) {
    const Connected& connected = wires_[idx(ranks)];
    if (connected.wire == nullptr) {
      watch_->meet(
          fmt::format("wire/{}", ranks),
          ranks,
          fmt::format("for the first run of {} of {} processes", ranks, options_.size));
      connect(ranks);
    }
    return *connected.wire;
  }

  // In place of what connected these ranks before.  They have met.
  gloo::Wire& connect(int ranks) {
    Connected& connected = wires_[idx(ranks)];
    connected.wire.reset();
    const std::string name =
        fmt::format("wire/{}/{}/{}", options_.attempt, ranks, connected.times++);
    // On a thread of its own: Gloo waits for a peer that is gone for longer than it is told.
    std::packaged_task<std::unique_ptr<gloo::Wire>()> task(
        [name = name,
         store = rendezvous::with_prefix(store_, name),
         key = rendezvous::root_key(options_.secret),
         rank = options_.rank,
         ranks,
         address = address_,
         patience = options_.patience] {
          return gloo::connect_all(
              store, rank, ranks, address, {.key = key, .name = name}, patience);
        });
    auto connecting = task.get_future();
    std::thread(std::move(task)).detach();
    connected.wire = watch_->await_wire(std::move(connecting), ranks, options_.patience);
    return *connected.wire;
  }

  void linger() {
    if (meeting_.server != nullptr) {
      await_leaving(*store_, options_.size);
    }
  }

  static double seconds(milliseconds time) { return static_cast<double>(time.count()) / 1e3; }

  struct Connected {
    std::unique_ptr<gloo::Wire> wire;
    int times = 0;
  };

  GlooOptions options_;
  std::string name_;
  std::string address_;     // this process's
  std::string rendezvous_;  // for messages
  std::string lost_;        // likewise, once it does not answer
  gloo::Meeting meeting_;
  std::shared_ptr<gloo::Store> store_;
  std::optional<gloo::Watch> watch_;
  std::map<int, std::pair<std::string, int>> peers_;  // where they listen
  std::vector<Connected> wires_;                      // [ranks]
  std::unique_ptr<gloo::Layer> layer_;                // absent: gloo alone
  int runs_ = 0;
};

class StoreRendezvous final : public Rendezvous {
 public:
  explicit StoreRendezvous(const GlooOptions& options)
      : server_(gloo::serve(options, options.port)) {}
  int port() const override { return server_->port(); }
  void await_leaving(int ranks, const std::string& attempt) override {
    paradyse::await_leaving(*gloo::of_attempt(server_->store(), attempt), ranks);
  }

 private:
  std::unique_ptr<rendezvous::Server> server_;
};

}  // namespace

std::shared_ptr<Backend> gloo_backend(const GlooOptions& options) {
  return std::make_shared<GlooBackend>(options);
}

std::shared_ptr<Backend> gloo::layered_backend(
    const GlooOptions& options, const std::string& name, const MakeLayer& make) {
  return std::make_shared<GlooBackend>(options, name, make);
}

void gloo::tell_failure(
    const GlooOptions& options, const std::string& message, bool bad_input, milliseconds patience) {
  try {
    const Meeting meeting = meet(options, patience);
    {
      Watch watch(
          meeting.store,
          options.rank,
          options.size,
          options.deadline,
          rendezvous::endpoint(options.host, meeting.port));
      watch.fail(message, bad_input);
    }
    if (meeting.server != nullptr) {
      paradyse::await_leaving(*meeting.store, options.size, patience);
    }
  } catch (const std::exception&) {  // what is wrong is told here all the same
    return;
  }
}

std::unique_ptr<Rendezvous> serve_rendezvous(
    const std::string& host, int port, const std::string& secret, const std::string& interface) {
  GlooOptions options;
  options.interface = interface;
  options.host = host;
  options.port = port;
  options.secret = secret;
  return std::make_unique<StoreRendezvous>(options);
}

}  // namespace paradyse
