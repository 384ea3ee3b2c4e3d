// Keys and values that all ranks see, kept by one of the processes.
#pragma once

#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <vector>

namespace paradyse::rendezvous {

// From any thread.  Throws std::runtime_error where its keeper is gone or does not answer.
class Store {
 public:
  virtual ~Store() = default;

  virtual void set(const std::string& key, const std::string& value) = 0;
  // Sets what is not there yet; gives what is there then.
  virtual std::string set_once(const std::string& key, const std::string& value) = 0;
  virtual std::optional<std::string> get(const std::string& key) = 0;
  // All of these are there; else throws std::runtime_error.
  virtual std::vector<std::string> get_all(const std::vector<std::string>& keys) = 0;
};

// Keys begin with `prefix` from here on.
std::shared_ptr<Store> with_prefix(std::shared_ptr<Store> store, const std::string& prefix);

// In this process.
class Table final : public Store {
 public:
  void set(const std::string& key, const std::string& value) override;
  std::string set_once(const std::string& key, const std::string& value) override;
  std::optional<std::string> get(const std::string& key) override;
  std::vector<std::string> get_all(const std::vector<std::string>& keys) override;

 private:
  std::mutex mutex_;
  std::map<std::string, std::string> values_;
};

}  // namespace paradyse::rendezvous
