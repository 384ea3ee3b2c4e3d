#include "src/run/comm/observed.h"

#include <utility>

namespace paradyse {
namespace {

using Moment = CommunicationObserver::Moment;

class Inside {
 public:
  Inside(CommunicationObserver& observer, Moment moment, const Call& call) : observer_(observer) {
    observer_.enter(moment, call);
  }
  ~Inside() { observer_.leave(); }
  Inside(const Inside&) = delete;
  Inside& operator=(const Inside&) = delete;

 private:
  CommunicationObserver& observer_;
};

class ObservedPending final : public Pending {
 public:
  ObservedPending(std::unique_ptr<Pending> real, CommunicationObserver& observer, const Call& call)
      : real_(std::move(real)), observer_(observer), call_(call) {}
  void wait() override {
    const Inside inside(observer_, Moment::wait, call_);
    real_->wait();
  }

 private:
  std::unique_ptr<Pending> real_;
  CommunicationObserver& observer_;
  Call call_;
};

}  // namespace

class ObservedCommunicators::One final : public Communicator {
 public:
  One(Communicator& real, CommunicationObserver& observer) : real_(real), observer_(observer) {}

  int rank() const override { return real_.rank(); }
  int size() const override { return real_.size(); }
  std::unique_ptr<Pending> exchange(
      const at::Tensor& from,
      const at::Tensor& to,
      const Transfer& table,
      const Call& call) override {
    return pending(call, [&] { return real_.exchange(from, to, table, call); });
  }
  std::unique_ptr<Pending> exchange_sum(
      const at::Tensor& from,
      const at::Tensor& to,
      const Transfer& table,
      bool accumulate,
      const Call& call) override {
    return pending(call, [&] { return real_.exchange_sum(from, to, table, accumulate, call); });
  }
  void all_reduce(const at::Tensor& tensor, const Call& call) override {
    const Inside inside(observer_, Moment::operation, call);
    real_.all_reduce(tensor, call);
  }
  void broadcast(const at::Tensor& tensor, int root, const Call& call) override {
    const Inside inside(observer_, Moment::operation, call);
    real_.broadcast(tensor, root, call);
  }
  void reduce(const at::Tensor& tensor, int root, const Call& call) override {
    const Inside inside(observer_, Moment::operation, call);
    real_.reduce(tensor, root, call);
  }
  std::unique_ptr<Pending> shift(
      const at::Tensor& from, const at::Tensor& to, int hops, const Call& call) override {
    return pending(call, [&] { return real_.shift(from, to, hops, call); });
  }
  void barrier(const Call& call) override {
    const Inside inside(observer_, Moment::operation, call);
    real_.barrier(call);
  }

 private:
  template <typename Begin>
  std::unique_ptr<Pending> pending(const Call& call, Begin begin) {
    const Inside inside(observer_, Moment::operation, call);
    return std::make_unique<ObservedPending>(begin(), observer_, call);
  }

  Communicator& real_;
  CommunicationObserver& observer_;
};

ObservedCommunicators::ObservedCommunicators(Communicators& real, CommunicationObserver& observer)
    : real_(real), observer_(observer) {}
ObservedCommunicators::~ObservedCommunicators() = default;

Communicator& ObservedCommunicators::observed(Communicator& communicator) {
  auto& made = made_[&communicator];
  if (made == nullptr) {
    made = std::make_unique<One>(communicator, observer_);
  }
  return *made;
}

std::string ObservedCommunicators::recover() {
  made_.clear();
  return real_.recover();
}

}  // namespace paradyse
