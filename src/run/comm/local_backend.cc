#include "paradyse/run/backend.h"

namespace paradyse {
namespace {

class LocalBackend final : public Backend {
 public:
  explicit LocalBackend(const LocalOptions& options) : options_(options) {}

  std::string name() const override { return "local"; }
  int first_rank() const override { return 0; }
  int ranks_per_node(int ranks) const override { return ranks; }
  void run(int ranks, const Body& body) override { run_local_ranks(ranks, options_, body); }
  void leave() override {}
  bool fail(const std::string&, bool) override { return true; }

 private:
  LocalOptions options_;
};

}  // namespace

std::shared_ptr<Backend> local_backend(const LocalOptions& options) {
  return std::make_shared<LocalBackend>(options);
}

}  // namespace paradyse
