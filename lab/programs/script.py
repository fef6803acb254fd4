"""Many objects of many sizes: dicts, lists, strings, instances. python3 script.py COUNT"""
import json
import sys


class Node:
    def __init__(self, key, left, right):
        self.key, self.left, self.right = key, left, right


def tree(depth, key):
    return Node(key, tree(depth - 1, 2 * key), tree(depth - 1, 2 * key + 1)) if depth else None


def total(node):
    return node.key + total(node.left) + total(node.right) if node else 0


def main():
    count, result, kept = int(sys.argv[1]), 0, {}
    for number in range(count):
        words = [("word %d" % (number * word)) * (1 + word % 7) for word in range(8)]
        kept[number % 5000] = {"number": number, "words": words, "text": " ".join(words)}
        result = (result * 31 + len(kept[number % 5000]["text"])) % 1000000007
    text = json.dumps(list(kept.values()))
    result += len(text) + sum(entry["number"] for entry in json.loads(text))
    for _ in range(4):
        result += total(tree(14, 1))
    print(result)


main()
