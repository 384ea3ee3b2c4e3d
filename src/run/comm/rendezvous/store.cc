#include "src/run/comm/rendezvous/store.h"

#include <stdexcept>
#include <utility>

namespace paradyse::rendezvous {
namespace {

class Prefixed final : public Store {
 public:
  Prefixed(std::shared_ptr<Store> store, std::string prefix)
      : store_(std::move(store)), prefix_(std::move(prefix)) {}

  void set(const std::string& key, const std::string& value) override {
    store_->set(full(key), value);
  }
  std::string set_once(const std::string& key, const std::string& value) override {
    return store_->set_once(full(key), value);
  }
  std::optional<std::string> get(const std::string& key) override { return store_->get(full(key)); }
  std::vector<std::string> get_all(const std::vector<std::string>& keys) override {
    std::vector<std::string> all;
    all.reserve(keys.size());
    for (const std::string& key : keys) {
      all.push_back(full(key));
    }
    return store_->get_all(all);
  }

 private:
  [[nodiscard]] std::string full(const std::string& key) const { return prefix_ + "/" + key; }

  std::shared_ptr<Store> store_;
  std::string prefix_;
};

}  // namespace

std::shared_ptr<Store> with_prefix(std::shared_ptr<Store> store, const std::string& prefix) {
  return std::make_shared<Prefixed>(std::move(store), prefix);
}

void Table::set(const std::string& key, const std::string& value) {
  const std::lock_guard lock(mutex_);
  values_[key] = value;
}

std::string Table::set_once(const std::string& key, const std::string& value) {
  const std::lock_guard lock(mutex_);
  return values_.try_emplace(key, value).first->second;
}

std::optional<std::string> Table::get(const std::string& key) {
  const std::lock_guard lock(mutex_);
  const auto found = values_.find(key);
  return found == values_.end() ? std::nullopt : std::optional(found->second);
}

std::vector<std::string> Table::get_all(const std::vector<std::string>& keys) {
  const std::lock_guard lock(mutex_);
  std::vector<std::string> all;
  all.reserve(keys.size());
  for (const std::string& key : keys) {
    const auto found = values_.find(key);
    if (found == values_.end()) {
      throw std::runtime_error("the rendezvous has no key " + key);
    }
    all.push_back(found->second);
  }
  return all;
}

}  // namespace paradyse::rendezvous
