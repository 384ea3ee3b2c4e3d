// Another backend, of which a test changes what it is about.
#pragma once

#include <memory>
#include <string>
#include <utility>

#include "paradyse/run/backend.h"

namespace paradyse::test {

class BackendOver : public Backend {
 public:
  explicit BackendOver(std::shared_ptr<Backend> real = local_backend()) : real_(std::move(real)) {}
  // Of one that lives longer.
  explicit BackendOver(Backend& real) : real_(std::shared_ptr<Backend>(), &real) {}

  [[nodiscard]] std::string name() const override { return real_->name(); }
  [[nodiscard]] int first_rank() const override { return real_->first_rank(); }
  [[nodiscard]] int ranks_per_node(int ranks) const override {
    return real_->ranks_per_node(ranks);
  }
  void run(int ranks, const Body& body) override { real_->run(ranks, body); }
  void leave() override { real_->leave(); }
  bool fail(const std::string& message, bool bad_input) override {
    return real_->fail(message, bad_input);
  }

 private:
  std::shared_ptr<Backend> real_;
};

}  // namespace paradyse::test
