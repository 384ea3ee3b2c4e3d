#include "src/run/memory/host_store.h"

#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <stdexcept>
#include <string>
#include <system_error>

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/mman.h>
#include <unistd.h>

#include "paradyse/run/accountant.h"
#include "src/plan/base/bytes_text.h"

namespace paradyse {
namespace {

// Closed when it goes out of scope: a mapping keeps its file.
struct File {
  int descriptor = -1;
  ~File() {
    if (descriptor >= 0) {
      close(descriptor);
    }
  }
};

// So much of a file without a name, zeros until written.
at::Tensor mapped(at::IntArrayRef sizes, const at::TensorOptions& options, const char* what) {
  const std::size_t bytes =
      static_cast<std::size_t>(c10::multiply_integers(sizes)) * options.dtype().itemsize();
  const char* const set = std::getenv("TMPDIR");
  const std::string folder = set != nullptr && *set != '\0' ? set : "/tmp";
  const auto refuse = [&](int error) {
    throw std::runtime_error(fmt::format(
        "offload: {} of {} do not fit into {}: {}; set TMPDIR to a folder with more free space",
        bytes_text(static_cast<std::int64_t>(bytes)),
        what,
        folder,
        std::generic_category().message(error)));
  };
  std::string name = folder + "/paradyse-offload-XXXXXX";
  const File file{mkostemp(name.data(), O_CLOEXEC)};
  if (file.descriptor < 0) {
    refuse(errno);
  }
  unlink(name.c_str());
  // All blocks now: writing to a mapping without room would end the process.
  const int full = posix_fallocate(file.descriptor, 0, static_cast<off_t>(bytes));
  if (full != 0) {
    refuse(full);
  }
  void* data = mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, file.descriptor, 0);
  if (data == MAP_FAILED) {
    refuse(errno);
  }
  return at::from_blob(data, sizes, [bytes](void* all) { munmap(all, bytes); }, options);
}

}  // namespace

at::Tensor host_zeros(std::int64_t elements, const at::TensorOptions& like, const char* what) {
  if (!like.device().is_cpu()) {
    const HostScope uncounted;
    return at::zeros({elements}, like.device(at::kCPU).pinned_memory(true));
  }
  return mapped({elements}, like, what);
}

std::vector<at::Tensor> host_zeros(
    const std::vector<at::Tensor>& likes, const at::TensorOptions& like, const char* what) {
  std::int64_t elements = 0;
  for (const at::Tensor& one : likes) {
    elements += one.numel();
  }
  if (elements == 0) {
    return likes;
  }
  const at::Tensor all = host_zeros(elements, like, what);
  std::vector<at::Tensor> pieces;
  pieces.reserve(likes.size());
  std::int64_t begin = 0;
  for (const at::Tensor& one : likes) {
    pieces.push_back(all.narrow(0, begin, one.numel()).view(one.sizes()));
    begin += one.numel();
  }
  return pieces;
}

at::Tensor to_host(const at::Tensor& tensor) {
  if (tensor.nbytes() == 0) {
    return tensor;
  }
  if (!tensor.is_cpu()) {  // pinned: it is fetched several times as fast
    const HostScope uncounted;
    const auto options = tensor.options().device(at::kCPU).pinned_memory(true);
    return at::empty(tensor.sizes(), options).copy_(tensor);
  }
  return mapped(tensor.sizes(), tensor.options(), "saved tensors").copy_(tensor);
}

}  // namespace paradyse
