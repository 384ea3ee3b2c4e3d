// Communicators that tell an observer when this rank enters and leaves an operation.
#pragma once

#include <map>
#include <memory>

#include "paradyse/run/communicator.h"

namespace paradyse {

class CommunicationObserver {
 public:
  enum class Moment { operation, wait };  // a call, or the wait for what one began

  virtual ~CommunicationObserver() = default;
  // May throw: the operation then does not happen.  Of a wait, `call` is what began it.
  virtual void enter(Moment moment, const Call& call) = 0;
  virtual void leave() = 0;
};

class ObservedCommunicators final : public Communicators {
 public:
  // Both must outlive it.
  ObservedCommunicators(Communicators& real, CommunicationObserver& observer);
  ~ObservedCommunicators() override;

  int rank() const override { return real_.rank(); }
  int size() const override { return real_.size(); }
  Communicator& world() override { return observed(real_.world()); }
  Communicator& group(const std::vector<int>& ranks) override {
    return observed(real_.group(ranks));
  }
  Counters counters() const override { return real_.counters(); }
  void allow(std::chrono::milliseconds least) override { real_.allow(least); }
  void abort(const std::string& message) override { real_.abort(message); }
  bool recovers() const override { return real_.recovers(); }
  void interrupt(const std::string& message) override { real_.interrupt(message); }
  std::string recover() override;

 private:
  class One;
  Communicator& observed(Communicator& communicator);

  Communicators& real_;
  CommunicationObserver& observer_;
  std::map<Communicator*, std::unique_ptr<One>> made_;
};

}  // namespace paradyse
