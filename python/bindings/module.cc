#include <exception>
#include <stdexcept>
#include <string>

#include "python/bindings/bindings.h"
#include "src/plan/base/bytes_text.h"
#include "src/plan/base/printable.h"
#include "src/plan/base/text_match.h"
#include "src/plan/base/xxh64.h"
#include "src/plan/simulate/batch_question.h"
#include "src/plan/tokens/mapped_file.h"

namespace paradyse::python {

std::int64_t bytes_of(const Memory& memory) {
  const std::string* const text = std::get_if<std::string>(&memory);
  const std::int64_t bytes = text != nullptr ? parse_bytes(*text) : std::get<std::int64_t>(memory);
  if (bytes < 1) {
    throw std::invalid_argument(
        "memory " + (text != nullptr ? *text : std::to_string(bytes)) +
        ": must be at least one byte");
  }
  return bytes;
}

Dtype half_or_single(const std::string& dtype) {
  expect_one_of("dtype", dtype, {"bfloat16", "float16", "float32"});
  return dtype_named(dtype);
}

namespace {

std::string file_xxh64(const std::string& path) {
  Xxh64 hash;
  hash.add(MappedFile(path).bytes());
  return hash.hex();
}

// Names and contents of files may not be UTF-8, as which Python takes what a message says.
void said_as_text(const std::exception_ptr& thrown, void* /*payload*/) {
  try {
    std::rethrow_exception(thrown);
  } catch (const std::invalid_argument& error) {
    PyErr_SetString(PyExc_ValueError, printable(error.what()).c_str());
  }
}

}  // namespace

NB_MODULE(_plan, module) {
  module.doc() = "The plan side of ParaDySe: who computes what, decided from numbers alone.";
  nb::register_exception_translator(said_as_text);  // of what NoPlan, asked before it, is not
  nb::exception<NoPlan>(module, "NoPlan", PyExc_ValueError);
  bind_model(module);
  bind_plan(module);
  bind_batch(module);
  bind_costs(module);
  bind_layers(module);
  bind_layout(module);
  bind_simulate(module);
  module.def(
      "file_xxh64",
      file_xxh64,
      "path"_a,
      WithoutGil(),
      "XXH64 of a file, 16 digits, as checkpoints have it.");
}

}  // namespace paradyse::python
