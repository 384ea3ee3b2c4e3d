#include "src/run/comm/rendezvous/requests.h"

#include <stdexcept>

#include "src/run/comm/rendezvous/bytes.h"

namespace paradyse::rendezvous {
namespace {

enum class Outcome : std::uint8_t { done = 0, refused = 1 };

// A count, and as many texts, to the end.
std::vector<std::string> texts_in(BytesReader& reader) {
  std::vector<std::string> texts;  // grows with what is there, whatever the count says
  for (auto left = reader.number<std::uint32_t>(); left > 0; --left) {
    texts.push_back(reader.text());
  }
  reader.finish();
  return texts;
}

std::string with_texts(std::uint8_t head, const std::vector<std::string>& texts) {
  std::string bytes;
  put_number(bytes, head);
  put_number(bytes, static_cast<std::uint32_t>(texts.size()));
  for (const std::string& text : texts) {
    put_text(bytes, text);
  }
  return bytes;
}

std::vector<std::string> done(
    Command command, const std::vector<std::string>& fields, Store& store) {
  const auto expect_fields = [&](std::size_t count) {
    if (fields.size() != count) {
      throw Malformed("a request has another number of fields than its command takes");
    }
  };
  switch (command) {
    case Command::set:
      expect_fields(2);
      store.set(fields[0], fields[1]);
      return {};
    case Command::set_once:
      expect_fields(2);
      return {store.set_once(fields[0], fields[1])};
    case Command::get: {
      expect_fields(1);
      auto value = store.get(fields[0]);
      return value ? std::vector{*std::move(value)} : std::vector<std::string>();
    }
    case Command::get_all:
      return store.get_all(fields);
  }
  throw Malformed("a request has an unknown command");
}

}  // namespace

std::string request(Command command, const std::vector<std::string>& fields) {
  return with_texts(static_cast<std::uint8_t>(command), fields);
}

std::string answer_to(std::string_view request, Store& store) {
  BytesReader reader(request);
  const auto command = static_cast<Command>(reader.number<std::uint8_t>());
  const std::vector<std::string> fields = texts_in(reader);
  try {
    return with_texts(static_cast<std::uint8_t>(Outcome::done), done(command, fields, store));
  } catch (const Malformed&) {
    throw;
  } catch (const std::runtime_error& error) {
    return with_texts(static_cast<std::uint8_t>(Outcome::refused), {error.what()});
  }
}

std::vector<std::string> values_in(std::string_view answer) {
  BytesReader reader(answer);
  const auto outcome = static_cast<Outcome>(reader.number<std::uint8_t>());
  std::vector<std::string> values = texts_in(reader);
  if (outcome == Outcome::refused && values.size() == 1) {
    throw std::runtime_error(values.front());
  }
  if (outcome != Outcome::done) {
    throw Malformed("an answer is neither done nor refused");
  }
  return values;
}

}  // namespace paradyse::rendezvous
