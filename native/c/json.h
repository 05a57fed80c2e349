// JSON of a bounded size and depth, which anybody may have written.

#ifndef ONEGRU_NATIVE_C_JSON_H_
#define ONEGRU_NATIVE_C_JSON_H_

#include <algorithm>
#include <clocale>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <stdexcept>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace onegru {

// Of files: broken, or not what is expected.
class BadFile : public std::runtime_error {
 public:
  using std::runtime_error::runtime_error;
};

struct Json {
  enum Kind : std::uint8_t { kNull, kBool, kNumber, kString, kArray, kObject };
  Kind kind = kNull;
  bool boolean = false;
  double number = 0;
  bool is_integer = false;  // written without a point or an exponent
  std::string text;
  std::vector<Json> items;         // of an array, or an object
  std::vector<std::string> names;  // of an object's

  // Null if there is no such member, or no object.
  const Json* Find(std::string_view name) const {
    if (kind != kObject) return nullptr;
    const auto found = std::find(names.begin(), names.end(), name);
    return found == names.end() ? nullptr : &items[static_cast<std::size_t>(found - names.begin())];
  }
  const Json& At(std::string_view name, Kind wanted) const {
    const Json* const found = Find(name);
    if (found == nullptr || found->kind != wanted) {
      throw BadFile(std::string(name) + (found == nullptr ? ": missing" : ": of the wrong type"));
    }
    return *found;
  }
  // An integer of 0…2^53.
  std::uint64_t Size() const {
    if (kind != kNumber || !is_integer || !(number >= 0 && number <= 0x1p53)) {
      throw BadFile("a size must be an integer of at least 0");
    }
    return static_cast<std::uint64_t>(number);
  }
};

class JsonParser {
 public:
  static Json Parse(std::string_view text) {
    JsonParser parser(text);
    Json value = parser.Value(0);
    parser.Space();
    if (parser.at_ != text.size()) Fail();
    return value;
  }

 private:
  static constexpr int kDepth = 16;

  explicit JsonParser(std::string_view text) : text_(text) {}

  [[noreturn]] static void Fail() { throw BadFile("not JSON, or truncated"); }
  void Space() {
    while (at_ < text_.size() && std::strchr(" \t\r\n", text_[at_]) != nullptr && text_[at_] != 0) ++at_;
  }
  bool Take(char c) {
    Space();
    const bool found = at_ < text_.size() && text_[at_] == c;
    at_ += found ? 1 : 0;
    return found;
  }
  bool TakeWord(std::string_view word) {
    const bool found = text_.substr(at_, word.size()) == word;
    at_ += found ? word.size() : 0;
    return found;
  }

  Json Value(int depth) {
    if (depth > kDepth) throw BadFile("JSON nested too deep");
    Json value;
    Space();
    if (Take('{')) {
      value.kind = Json::kObject;
      if (Take('}')) return value;
      do {
        Space();
        std::string name = String();
        if (!Take(':')) Fail();
        value.names.push_back(std::move(name));
        value.items.push_back(Value(depth + 1));
      } while (Take(','));
      if (!Take('}')) Fail();
      std::vector<std::string_view> sorted(value.names.begin(), value.names.end());
      std::sort(sorted.begin(), sorted.end());
      if (std::adjacent_find(sorted.begin(), sorted.end()) != sorted.end()) throw BadFile("JSON that has a name twice");
    } else if (Take('[')) {
      value.kind = Json::kArray;
      if (Take(']')) return value;
      do value.items.push_back(Value(depth + 1));
      while (Take(','));
      if (!Take(']')) Fail();
    } else if (at_ < text_.size() && text_[at_] == '"') {
      value.kind = Json::kString;
      value.text = String();
    } else if (TakeWord("true") || TakeWord("false")) {
      value.kind = Json::kBool;
      value.boolean = text_[at_ - 2] == 'u';
    } else if (!TakeWord("null")) {
      value.kind = Json::kNumber;
      value.number = Number(value.is_integer);
    }
    return value;
  }

  // The digits that come; at least one.
  void Digits(std::string& to) {
    const std::size_t begin = at_;
    while (at_ < text_.size() && text_[at_] >= '0' && text_[at_] <= '9') to += text_[at_++];
    if (at_ == begin) Fail();
  }
  bool Next(std::string_view any) const { return at_ < text_.size() && any.find(text_[at_]) != any.npos; }

  double Number(bool& is_integer) {
    std::string digits;
    if (Next("-")) digits += text_[at_++];
    const std::size_t begin = digits.size();
    Digits(digits);
    if (digits.size() > begin + 1 && digits[begin] == '0') Fail();
    is_integer = !Next(".eE");
    if (Next(".")) {
      ++at_;
      digits += std::localeconv()->decimal_point;  // what the program's locale has
      Digits(digits);
    }
    if (Next("eE")) {
      digits += text_[at_++];
      if (Next("+-")) digits += text_[at_++];
      Digits(digits);
    }
    const double number = std::strtod(digits.c_str(), nullptr);
    if (!std::isfinite(number)) throw BadFile("a number beyond float64");
    return number;
  }

  std::string String() {
    if (!Take('"')) Fail();
    std::string string;
    while (at_ < text_.size() && text_[at_] != '"') {
      char c = text_[at_++];
      if (c == '\\') {
        constexpr std::string_view kEscapes = "\"\\/bfnrt", kMeanings = "\"\\/\b\f\n\r\t";
        if (at_ == text_.size()) Fail();
        c = text_[at_++];
        const std::size_t which = kEscapes.find(c);
        if (which == kEscapes.npos)
          c = Code();
        else
          c = kMeanings[which];
      }
      string += static_cast<unsigned char>(c) < 0x80 ? c : kBeyondAscii;
    }
    if (!Take('"')) Fail();
    return string;
  }

  // No name or word that is looked for has such a character: another one stands for them all.
  static constexpr char kBeyondAscii = '?';

  // What follows \u.
  char Code() {
    const std::string digits(text_.substr(at_, 4));
    char* end = nullptr;
    const unsigned long code = std::strtoul(digits.c_str(), &end, 16);
    if (text_[at_ - 1] != 'u' || digits.size() != 4 || end != digits.c_str() + 4) Fail();
    at_ += 4;
    return code < 0x80 ? static_cast<char>(code) : kBeyondAscii;
  }

  std::string_view text_;
  std::size_t at_ = 0;
};

}  // namespace onegru

#endif  // ONEGRU_NATIVE_C_JSON_H_
