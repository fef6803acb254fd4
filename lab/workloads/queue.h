/* A bounded queue of pointers between threads, with one lock: the queue itself allocates nothing. */
#ifndef NEAP_LAB_QUEUE_H
#define NEAP_LAB_QUEUE_H

#include "common.h"

enum { QUEUE_ROOM = 16 };

typedef struct {
  pthread_mutex_t lock;
  pthread_cond_t filled;
  pthread_cond_t drained;
  size_t head;
  size_t count;
  void *items[QUEUE_ROOM];
} queue_t;

static inline void queue_init(queue_t *queue) {
  pthread_mutex_init(&queue->lock, NULL);
  pthread_cond_init(&queue->filled, NULL);
  pthread_cond_init(&queue->drained, NULL);
  queue->head = 0;
  queue->count = 0;
}

static inline void queue_put(queue_t *queue, void *item) {
  pthread_mutex_lock(&queue->lock);
  while (queue->count == QUEUE_ROOM) pthread_cond_wait(&queue->drained, &queue->lock);
  queue->items[(queue->head + queue->count++) % QUEUE_ROOM] = item;
  pthread_cond_signal(&queue->filled);
  pthread_mutex_unlock(&queue->lock);
}

static inline void *queue_take(queue_t *queue) {
  pthread_mutex_lock(&queue->lock);
  while (queue->count == 0) pthread_cond_wait(&queue->filled, &queue->lock);
  void *item = queue->items[queue->head];
  queue->head = (queue->head + 1) % QUEUE_ROOM;
  queue->count--;
  pthread_cond_signal(&queue->drained);
  pthread_mutex_unlock(&queue->lock);
  return item;
}

#endif
