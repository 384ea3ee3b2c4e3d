// Words.  What a rank hands to another in one operation is one *message*: the elements of all its
// blocks, in the table's order, packed in staging memory.  Before each message goes the operation's
// *tag*, a hash of its name, sizes and number; it comes to the receiver's host behind the message,
// and is compared with the own one when all has come, so that ranks that took different paths are
// found.
//
// An operation runs in the copy stream (streams.h) from when it is issued.  wait() keeps the host
// until the device is through with it, since that is the only place where a deadline can be kept.
// Sums are added by the receiver in the order of ranks: bit by bit those of `local`.
#include "src/run/comm/nccl/communicator.h"

#include <algorithm>
#include <functional>
#include <map>
#include <stdexcept>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include "paradyse/plan/detail/index.h"
#include "paradyse/run/accountant.h"
#include "src/run/comm/boxes.h"
#include "src/run/kernels/aten/aten_kernels.h"

namespace paradyse::nccl {
namespace {

std::int64_t tag_of(const std::string& where, const std::string& what) {
  return static_cast<std::int64_t>(std::hash<std::string>{}(where + "\n" + what));
}

struct NcclWorld {
  Wire& wire;
  gloo::Watch& watch;
  std::unique_ptr<gloo::RankCommunicators> gloo;
  Counters counters;
};

using Boxes = std::vector<at::Tensor>;  // the boxes of a message

std::int64_t count_of(const Boxes& message) {
  std::int64_t count = 0;
  for (const at::Tensor& rows : message) {
    count += rows.numel();
  }
  return count;
}
std::vector<std::int64_t> counts_of(const std::vector<Boxes>& messages) {
  std::vector<std::int64_t> counts;
  for (const Boxes& message : messages) {
    counts.push_back(count_of(message));
  }
  return counts;
}

class NcclCommunicator final : public Communicator {
 public:
  NcclCommunicator(NcclWorld& world, Communicator& gloo, std::vector<int> ranks)
      : world_(world), gloo_(gloo), ranks_(std::move(ranks)), rank_(gloo.rank()) {}

  int rank() const override { return rank_; }
  int size() const override { return static_cast<int>(ranks_.size()); }

  std::unique_ptr<Pending> exchange(
      const at::Tensor& from,
      const at::Tensor& to,
      const Transfer& table,
      const Call& call) override {
    if (from.is_cpu()) {
      return gloo_.exchange(from, to, table, call);
    }
    check_piece(from, table.source[idx(rank_)], call, "source");
    check_piece(to, table.destination[idx(rank_)], call, "destination");
    if (from.scalar_type() != to.scalar_type()) {
      throw std::logic_error(to_string(call) + ": source and destination have different types");
    }
    std::vector<Boxes> out(idx(size()));
    std::vector<Boxes> in(idx(size()));
    for (const Box& box : table.boxes) {
      if (box.source == rank_) {
        out[idx(box.destination)].push_back(aten::region_of(from, at_source(box)));
      }
      if (box.destination == rank_) {
        in[idx(box.source)].push_back(aten::region_of(to, at_destination(box)));
      }
    }
    auto operation = issue("exchange", call, elements(table), from);
    operation->keep = {from, to};
    operation->run(out, counts_of(in), [&](int peer, const at::Tensor& message) {
      std::int64_t begin = 0;
      for (const at::Tensor& rows : in[idx(peer)]) {
        rows.copy_(message.narrow(0, begin, rows.numel()).view(rows.sizes()));
        begin += rows.numel();
      }
    });
    return operation;
  }

  std::unique_ptr<Pending> exchange_sum(
      const at::Tensor& from,
      const at::Tensor& to,
      const Transfer& table,
      bool accumulate,
      const Call& call) override {
    if (from.is_cpu()) {
      return gloo_.exchange_sum(from, to, table, accumulate, call);
    }
    check_piece(from, table.destination[idx(rank_)], call, "source");
    check_piece(to, table.source[idx(rank_)], call, "destination");
    std::vector<Boxes> out(idx(size()));
    std::vector<std::int64_t> in(idx(size()));
    std::vector<const Box*> mine;  // what `to` is the sum of
    for (const Box& box : table.boxes) {
      if (box.destination == rank_) {
        out[idx(box.source)].push_back(aten::region_of(from, at_destination(box)));
      }
      if (box.source == rank_) {
        mine.push_back(&box);
        in[idx(box.destination)] += box.elements();
      }
    }
    auto operation = issue("exchange_sum", call, elements(table), from);
    operation->keep = {from, to};
    std::map<int, at::Tensor> messages;
    operation->run(out, in, [&](int peer, const at::Tensor& message) { messages[peer] = message; });
    operation->then([&] {
      std::map<const Box*, kernels::Summand> places;
      std::map<int, std::int64_t> begin;
      for (const Box* box : mine) {
        std::int64_t& offset = begin[box->destination];
        places[box] = {messages.at(box->destination), packed(*box, offset)};
        offset += box->elements();
      }
      sum_boxes(to, table, rank_, accumulate, [&](const Box& box) { return places.at(&box); });
    });
    return operation;
  }

  void broadcast(const at::Tensor& tensor, int root, const Call& call) override {
    if (tensor.is_cpu()) {
      return gloo_.broadcast(tensor, root, call);
    }
    check_contiguous(tensor, call);
    const at::Tensor flat = tensor.view({-1});
    std::vector<Boxes> out(idx(size()));
    std::vector<std::int64_t> in(idx(size()));
    if (rank_ == root) {
      out.assign(idx(size()), Boxes{flat});
      out[idx(rank_)].clear();
    } else {
      in[idx(root)] = flat.numel();
    }
    auto operation = issue("broadcast", call, tensor.numel(), tensor);
    operation->run(out, in, [&](int, const at::Tensor& message) { flat.copy_(message); });
    operation->wait();
  }

  void reduce(const at::Tensor& tensor, int root, const Call& call) override {
    if (tensor.is_cpu()) {
      return gloo_.reduce(tensor, root, call);
    }
    check_contiguous(tensor, call);
    const at::Tensor flat = tensor.view({-1});
    std::vector<Boxes> out(idx(size()));
    std::vector<std::int64_t> in(idx(size()));
    if (rank_ != root) {
      out[idx(root)] = {flat};
    } else {
      in.assign(idx(size()), flat.numel());
      in[idx(rank_)] = 0;
    }
    auto operation = issue("reduce", call, tensor.numel(), tensor);
    std::vector<at::Tensor> others;
    operation->run(out, in, [&](int, const at::Tensor& message) { others.push_back(message); });
    if (rank_ == root) {
      operation->then([&] { add_all(flat, others); });
    }
    operation->wait();
  }

  std::unique_ptr<Pending> shift(
      const at::Tensor& from, const at::Tensor& to, int hops, const Call& call) override {
    if (from.is_cpu()) {
      return gloo_.shift(from, to, hops, call);
    }
    check_contiguous(from, call);
    check_contiguous(to, call);
    const int step = (hops % size() + size()) % size();
    std::vector<Boxes> out(idx(size()));
    std::vector<std::int64_t> in(idx(size()));
    const at::Tensor flat = to.view({-1});
    out[idx((rank_ + step) % size())] = {from.view({-1})};
    in[idx((rank_ - step + size()) % size())] = flat.numel();
    // Pieces may differ in size from rank to rank, so that no size is common to all.
    auto operation = issue("shift", call, 0, from);
    operation->keep = {from, to};
    operation->run(out, in, [&](int, const at::Tensor& message) { flat.copy_(message); });
    return operation;
  }

  void barrier(const Call& call) override { gloo_.barrier(call); }

 private:
  static constexpr std::size_t kRoom = 8;  // operations under way at once

  // An operation of this rank: given to the device when it is issued.
  class Operation final : public Pending {
   public:
    Operation(
        NcclCommunicator& owner, std::int64_t number, std::string what, const at::Tensor& like)
        : owner_(owner),
          number_(number),
          what_(std::move(what)),
          where_(fmt::format(
              "operation {} of ranks {} over nccl", number, fmt::join(owner.ranks_, ", "))),
          tag_(tag_of(where_, what_)),
          options_(like.options()) {
      owner_.under_way_[number_] = this;
    }
    // One that nobody waited for belongs to a rank that failed: without its peers it never ends.
    ~Operation() override {
      owner_.under_way_.erase(number_);
      if (!done_) {
        owner_.world_.wire.abort();
      }
    }
    Operation(const Operation&) = delete;
    Operation& operator=(const Operation&) = delete;

    // Sends out[r] to rank r, receives in[r] elements from it (the own ones, too), and calls
    // take(r, its elements one after the other) for each in the order of ranks.
    template <typename Take>
    void run(const std::vector<Boxes>& out, const std::vector<std::int64_t>& in, Take take) {
      const HostScope staging;  // as gloo's, outside the budgets
      const CopyScope copying;
      const int size = owner_.size();
      const auto longs = options_.dtype(at::kLong);
      sent_tag_ = at::full({1}, tag_, longs);
      tags_ = at::full({size}, tag_, longs);
      std::vector<at::Tensor> messages(idx(size));
      std::vector<Chunk> sent;
      std::vector<Chunk> received;
      const auto add = [&](std::vector<Chunk>& chunks, int peer, const at::Tensor& tensor) {
        chunks.push_back(
            {.rank = owner_.ranks_[idx(peer)],
             .data = tensor.data_ptr(),
             .bytes = static_cast<std::int64_t>(tensor.nbytes())});
      };
      for (int peer = 0; peer < size; ++peer) {
        if (count_of(out[idx(peer)]) > 0) {
          const at::Tensor packed = pack(out[idx(peer)]);
          if (peer == owner_.rank_) {
            messages[idx(peer)] = packed;
            continue;
          }
          staging_.push_back(packed);
          add(sent, peer, sent_tag_);
          add(sent, peer, packed);
          owner_.world_.counters.bytes_sent += static_cast<std::int64_t>(packed.nbytes());
          ++owner_.world_.counters.messages;
        }
        if (in[idx(peer)] > 0 && peer != owner_.rank_) {
          messages[idx(peer)] = at::empty({in[idx(peer)]}, options_);
          add(received, peer, tags_.narrow(0, peer, 1));
          add(received, peer, messages[idx(peer)]);
        }
      }
      if (!sent.empty() || !received.empty()) {
        owner_.world_.wire.exchange(sent, received);
      }
      if (!received.empty()) {  // here when done_mark_ is passed, which wait() waits for
        came_ = at::empty({size}, longs.device(at::kCPU).pinned_memory(true));
        came_.copy_(tags_, /*non_blocking=*/true);
      }
      for (int peer = 0; peer < size; ++peer) {
        if (messages[idx(peer)].defined()) {
          staging_.push_back(messages[idx(peer)]);
          take(peer, messages[idx(peer)]);
        }
      }
      done_mark_ = Mark::here();
      if (done_mark_ == nullptr) {
        throw std::logic_error(what_ + ": a tensor of a device outside a DeviceScope");
      }
    }

    // After that, also in the copy stream.
    template <typename Body>
    void then(Body body) {
      const CopyScope copying;
      body();
      done_mark_ = Mark::here();
    }

    void wait() override {
      if (done_) {
        return;
      }
      const auto message = owner_.world_.wire.passing(done_mark_);
      const int peer = owner_.ranks_[idx((owner_.rank_ + 1) % owner_.size())];
      owner_.world_.watch.await(*message, {.rank = peer, .where = where_, .what = what_});
      Mark::wait(done_mark_);
      check_tags();
      staging_.clear();
      keep.clear();
      done_ = true;
      owner_.under_way_.erase(number_);
    }

    std::vector<at::Tensor> keep;  // source, destination: alive while the device uses them

   private:
    static at::Tensor pack(const Boxes& rows) {
      if (rows.size() == 1 && rows.front().is_contiguous()) {
        return rows.front().view({-1});
      }
      std::vector<at::Tensor> flat;
      for (const at::Tensor& block : rows) {
        flat.push_back(block.reshape({-1}));
      }
      return at::cat(flat);
    }

    void check_tags() const {
      if (!came_.defined()) {
        return;
      }
      const auto* tags = came_.const_data_ptr<std::int64_t>();
      for (int peer = 0; peer < owner_.size(); ++peer) {
        if (tags[peer] != tag_) {
          throw CommunicatorError(fmt::format(
              "ranks disagree about {}: rank {} is in {}, rank {} in something else",
              where_,
              owner_.ranks_[idx(owner_.rank_)],
              what_,
              owner_.ranks_[idx(peer)]));
        }
      }
    }

    NcclCommunicator& owner_;
    std::int64_t number_;
    std::string what_;
    std::string where_;
    std::int64_t tag_;
    at::TensorOptions options_;
    at::Tensor sent_tag_;
    at::Tensor tags_;  // [rank] what came before its message; the own tag where nothing did
    at::Tensor came_;  // the same on the host, once the device has passed done_mark_
    std::vector<at::Tensor> staging_;
    MarkPtr done_mark_;
    bool done_ = false;
  };

  static std::int64_t elements(const Transfer& table) {
    std::int64_t sum = 0;
    for (const std::int64_t piece : table.destination) {
      sum += piece;
    }
    return sum;
  }

  std::unique_ptr<Operation> issue(
      const char* kind, const Call& call, std::int64_t count, const at::Tensor& like) {
    world_.watch.check();
    if (under_way_.size() >= kRoom) {
      under_way_.begin()->second->wait();
    }
    return std::make_unique<Operation>(
        *this,
        number_++,
        fmt::format(
            "{} of {} ({} elements of {})",
            kind,
            to_string(call),
            count,
            c10::toString(like.scalar_type())),
        like);
  }

  NcclWorld& world_;
  Communicator& gloo_;
  std::vector<int> ranks_;  // of the world
  int rank_;
  std::int64_t number_ = 0;                       // of the next operation
  std::map<std::int64_t, Operation*> under_way_;  // [number]
};

class NcclCommunicators final : public gloo::RankCommunicators {
 public:
  NcclCommunicators(Wire& wire, gloo::Watch& watch, std::unique_ptr<gloo::RankCommunicators> gloo)
      : world_{.wire = wire, .watch = watch, .gloo = std::move(gloo), .counters = {}} {
    for (int r = 0; r < size(); ++r) {
      everyone_.push_back(r);
    }
  }

  int rank() const override { return world_.gloo->rank(); }
  int size() const override { return world_.gloo->size(); }
  Communicator& world() override { return group(everyone_); }
  Communicator& group(const std::vector<int>& ranks) override {
    auto& made = made_[ranks];
    if (made == nullptr) {
      made = std::make_unique<NcclCommunicator>(world_, world_.gloo->group(ranks), ranks);
    }
    return *made;
  }
  Counters counters() const override {
    Counters sum = world_.gloo->counters();
    sum.bytes_sent += world_.counters.bytes_sent;
    sum.messages += world_.counters.messages;
    return sum;
  }
  void allow(std::chrono::milliseconds least) override { world_.gloo->allow(least); }
  void abort(const std::string& message) override {
    world_.gloo->abort(message);
    world_.wire.abort();
  }
  void finish() override { world_.gloo->finish(); }

 private:
  NcclWorld world_;
  std::vector<int> everyone_;
  std::map<std::vector<int>, std::unique_ptr<NcclCommunicator>> made_;
};

}  // namespace

std::unique_ptr<gloo::RankCommunicators> communicators(
    Wire& wire, gloo::Watch& watch, std::unique_ptr<gloo::RankCommunicators> gloo) {
  return std::make_unique<NcclCommunicators>(wire, watch, std::move(gloo));
}

}  // namespace paradyse::nccl
